"""What a generator's state looks like as bytes: each kind's own form, over the same seed and offset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Form", "form_of", "whole_fours"]

_WHOLE = (1 << 64) - 1


class Form(NamedTuple):
    """Of one kind: of `sizes`, in bytes, the first is written.

    `pack` takes a seed and an offset in words, `unpack` gives them; RuntimeError where no draw can begin there.
    """

    sizes: tuple[int, ...]
    pack: Callable[[int, int], bytes]
    unpack: Callable[[bytes], tuple[int, int]]


def whole_fours(offset: int) -> int:
    """The same offset; RuntimeError unless it is a multiple of 4, which are the words that Philox makes at once."""
    if offset % 4:
        raise RuntimeError("offset must be a multiple of 4")
    return offset


_PAIR = struct.Struct("<QQ")


def _pair(state: bytes) -> tuple[int, int]:
    seed, offset = _PAIR.unpack(state.ljust(16, b"\0"))
    return seed, whole_fours(offset)


# PyTorch's for CUDA: seed and offset, or a seed alone.
_SIXTEEN = Form((16, 8), _PAIR.pack, _pair)

# PyTorch's for MPS: seven words of 32 bits (1, a counter of four words, the two halves of the seed), the seed, and the
# offset, in counters of Philox, each four words. The first counter is for Apple's graphs: 1 1 1 1 from the seed on, and
# moved by an LSTM's dropout alone. Nothing here draws from it, so a state may have any there.
_METAL = struct.Struct("<7IQQ")


def _metal(seed: int, words: int) -> bytes:
    return _METAL.pack(1, 1, 1, 1, 1, seed & 0xFFFFFFFF, seed >> 32, seed, words >> 2)


def _of_metal(state: bytes) -> tuple[int, int]:
    *_, seed, counters = _METAL.unpack(state)
    return seed, counters << 2 & _WHOLE


_FORTY_FOUR = Form((44,), _metal, _of_metal)

_FORMS = {"mps": _FORTY_FOUR}


def form_of(kind: str) -> Form:
    """That of the kind's generators: CUDA's, where the kind has none of its own."""
    return _FORMS.get(kind, _SIXTEEN)
