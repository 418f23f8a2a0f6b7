"""Random permutations as PyTorch makes them on a GPU: random keys are sorted, and equal ones shuffled among themselves.

From its sources, and from what its launches take and allocate; nobody published numbers to compare them with.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from forebay.device_spec import Device
from forebay.dtypes import as_dtype
from forebay.runtime.base import observers
from forebay.runtime.base.queue_capabilities import launches
from forebay.runtime.base.torch_types import missing, named, torch_type
from forebay.runtime.memory import transfer
from forebay.runtime.random import fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import stream_of
from forebay.runtime.tensors.creation import empty
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["key_bits", "permutation", "philox", "randperm"]

_MOST = (1 << 31) - 1  # what PyTorch's sort counts
_CAST_NAMES = {"bool": "bool", "int32": "int", "float16": "c10::Half"}  # others as C calls them, int8_t
_WORD = 0xFFFFFFFF


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: Device | str | int | None = None,
) -> Tensor:
    """The integers from 0 on, below `n`, in random order; int64 unless a dtype is given. (`torch.randperm`)

    Raises RuntimeError for a dtype that has not all of them, or for more than 2**31 - 1.

    >>> import forebay
    >>> sorted(forebay.randperm(5, device="host:0").tolist())
    [0, 1, 2, 3, 4]
    """
    if isinstance(n, (bool, np.bool_)):
        raise TypeError(f"randperm(): argument 'n' must be int, not {type(n).__name__}")
    count, kind = operator.index(n), as_dtype(np.int64 if dtype is None else dtype)
    if count < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {count}: [{count}]")
    _check_type(count, kind)
    made = empty((count,), dtype=kind, device=device)
    if kind.kind in "bc" or named(kind) in {"", "uint16", "uint32", "uint64"}:
        raise missing(f"arange_{made.device.kind}", kind)
    if count:
        _shuffle(made, generator)
    return made


def _check_type(count: int, dtype: np.dtype[Any]) -> None:
    """That the dtype has all the numbers, in PyTorch's words."""
    digits = torch_type(dtype).digits
    if digits:
        most = float(np.finfo(dtype).max) if dtype.name == "float16" else math.inf
    else:
        most = np.iinfo(dtype).max if dtype.kind in "iu" else math.inf
    if count - 1 > most:
        name = _CAST_NAMES.get(dtype.name, f"{dtype.name}_t")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")
    if digits and dtype.name != "bfloat16" and count > (1 << digits) + 1:
        bound = str((1 << digits) + 1) if digits == 11 else f"2^{digits}+1"
        raise RuntimeError(f"n cannot be greater than {bound} for {torch_type(dtype).name} type.")
    if count > _MOST:
        raise RuntimeError("cub sort does not support sorting more than INT_MAX elements")


def _shuffle(target: Tensor, generator: Generator | None) -> None:
    count = target.numel()
    bits = key_bits(count)
    width = 32 if bits <= 32 else 64
    keys = empty((count,), dtype=f"int{width}", device=target.device)
    fill.integers(keys, -1 << (width - 1), (1 << (width - 1)) - 1, generator)
    if target.dtype.name == "bfloat16":  # that is when PyTorch finds out
        raise missing(f"randperm_out_{target.device.kind}", target.dtype)
    seed, offset = fill.generator_for(target, generator)[0].take(count)
    opened = target.storage.opened
    queue, props = stream_of(opened).queue, opened.port.props
    if (props.host_visible or props.queue_visible) and launches(queue):
        drawn, array = keys.raw_array(), target.raw_array()
        transfer.expect(queue, array)
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        queue.call(lambda: np.copyto(array, permutation(drawn, bits, seed, offset), casting="unsafe"))
        if tracer:
            tracer.queued(queue, begun, "call", "randperm", target.nbytes)
        for listener in observers.of_launches:
            listener.launched(stream_of(opened), "randperm", (keys,), (target,))
    else:
        target.copy_(permutation(transfer.read(keys), bits, seed, offset))


def key_bits(count: int) -> int:
    """How many bits of the keys are sorted by: so many that no two are equal in nine of ten permutations."""
    n = float(count)
    return min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (math.log(0.9) * 12))))


def permutation(keys: NDArray[Any], bits: int, seed: int, offset: int) -> NDArray[np.int64]:
    """Where the keys go in the order of their low bits; equal ones are shuffled by Philox, by whom is said there.

    A run of equal keys is shuffled by the thread of its first place, from its last element on.
    """
    order, low = _sorted(keys, bits)
    equal = np.flatnonzero(low[1:] == low[:-1])  # to the next
    first = equal[np.flatnonzero(np.diff(equal, prepend=-2) != 1)]
    for start in first.tolist():
        end = start + int(np.searchsorted(low[start:], low[start], side="right"))
        for turn, last in enumerate(range(end - 1, start, -1)):
            word = philox(seed, start, offset // 4 + turn // 4)[turn % 4]
            other = start + word % (last - start + 1)
            order[[last, other]] = order[[other, last]]
    return order


def _sorted(keys: NDArray[Any], bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The places of the keys in the order of their low bits, equal ones in their own; and those bits in that order."""
    low = keys.view(f"u{keys.itemsize}").astype(np.uint64)
    if bits == 8 * keys.itemsize:  # all of them: then the negative ones are the smaller
        low ^= np.uint64(1 << (bits - 1))
    else:
        low &= np.uint64((1 << bits) - 1)
    places = max(len(low) - 1, 1).bit_length()
    if bits + places > 64:
        order: NDArray[np.int64] = np.argsort(low, kind="stable")
        return order, low[order]
    both = low << np.uint64(places) | np.arange(len(low), dtype=np.uint64)  # three times as fast
    both.sort()
    return (both & np.uint64((1 << places) - 1)).astype(np.int64), both >> np.uint64(places)


def philox(seed: int, subsequence: int, draw: int) -> tuple[int, int, int, int]:
    """The four words of one call, in Python: for the few that no kernel draws, and to check those that do."""
    a, b, c, d = draw & _WORD, draw >> 32 & _WORD, subsequence & _WORD, subsequence >> 32 & _WORD
    for turn in range(10):
        k, h = seed + turn * 0x9E3779B9 & _WORD, (seed >> 32) + turn * 0xBB67AE85 & _WORD
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ k, q & _WORD, p >> 32 ^ d ^ h, p & _WORD
    return a, b, c, d
