"""Byte formats of generator states: each device kind has its own, over the same seed and offset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["StateFormat", "checked_offset", "format_of"]

_UINT64_MAX = (1 << 64) - 1


class StateFormat(NamedTuple):
    """The state format of a device kind: accepted `sizes` in bytes (the first is written), `pack` and `unpack`.

    `pack` takes a seed and an offset in words; `unpack` returns them, or raises RuntimeError for an invalid offset.
    """

    sizes: tuple[int, ...]
    pack: Callable[[int, int], bytes]
    unpack: Callable[[bytes], tuple[int, int]]


def checked_offset(offset: int) -> int:
    """Return the offset. Raises RuntimeError unless it is a multiple of 4, the words that one Philox call makes."""
    if offset % 4:
        raise RuntimeError("offset must be a multiple of 4")
    return offset


_SEED_AND_OFFSET = struct.Struct("<QQ")


def _unpack_cuda(state: bytes) -> tuple[int, int]:
    seed, offset = _SEED_AND_OFFSET.unpack(state.ljust(16, b"\0"))
    return seed, checked_offset(offset)


# PyTorch's CUDA format: seed and offset, or the seed alone.
_CUDA = StateFormat((16, 8), _SEED_AND_OFFSET.pack, _unpack_cuda)

# PyTorch's MPS format: seven 32-bit words (1, a counter of four words, the two halves of the seed), the seed, and the
# offset in Philox counters of four words each. The first counter is for Apple's graphs: 1 1 1 1 after seeding, advanced
# only by an LSTM's dropout. Nothing here draws from it, so a state may hold any value there.
_MPS_FIELDS = struct.Struct("<7IQQ")


def _pack_mps(seed: int, words: int) -> bytes:
    return _MPS_FIELDS.pack(1, 1, 1, 1, 1, seed & 0xFFFFFFFF, seed >> 32, seed, words >> 2)


def _unpack_mps(state: bytes) -> tuple[int, int]:
    *_, seed, counters = _MPS_FIELDS.unpack(state)
    return seed, counters << 2 & _UINT64_MAX


_MPS = StateFormat((44,), _pack_mps, _unpack_mps)

_FORMATS = {"mps": _MPS}


def format_of(kind: str) -> StateFormat:
    """Return the state format of the device kind; CUDA's by default."""
    return _FORMATS.get(kind, _CUDA)
