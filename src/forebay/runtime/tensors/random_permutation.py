"""Random permutations by PyTorch's GPU algorithm: sort random keys, then shuffle runs of equal keys.

Derived from PyTorch's sources and from its observed launches and allocations; there are no published values to compare.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from forebay._base.device_spec import Device
from forebay._base.dtypes import as_dtype
from forebay._base.layouts import layout, strided
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.runtime.base.torch_types import not_implemented, torch_name, torch_type
from forebay.runtime.devices.current import resolve
from forebay.runtime.memory import transfer
from forebay.runtime.random import drawing, fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.creation import empty, empty_for
from forebay.runtime.tensors.options import check_options, check_out
from forebay.runtime.tensors.queued_numpy import Arrays, run_on_arrays
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["key_bits", "permutation", "philox", "randperm"]

_INT32_MAX = (1 << 31) - 1  # the limit of PyTorch's sort
_CAST_NAMES = {"bool": "bool", "int32": "int", "float16": "c10::Half"}  # other dtypes by their C names, as int8_t
_MASK = 0xFFFFFFFF


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DTypeLike | None = None,
    layout: layout = strided,
    device: Device | str | int | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Return the integers from 0 to `n` - 1 in random order, in one dimension.

    As `torch.randperm` on a GPU. Opens the device.

    Parameters
    ----------
    n : int
        Number of elements; at most 2**31 - 1.
    generator : Generator, optional
        The generator; the device's default one by default.
    out : Tensor, optional
        A tensor to write to instead of a new one; its shape becomes (`n`,).
    dtype : dtype, optional
        That of `out`, or else int64, by default.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        The device; the default device of this thread otherwise.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    requires_grad : bool, optional
        Only False.

    Raises
    ------
    TypeError
        If `n` is not an int.
    RuntimeError
        If `n` is negative or too large, or if the dtype cannot represent all the integers.

    Examples
    --------
    >>> import forebay
    >>> sorted(forebay.randperm(5, device="cpu").tolist())
    [0, 1, 2, 3, 4]
    """
    check_options("randperm", layout, requires_grad)
    if isinstance(n, (bool, np.bool_)):
        raise TypeError(f"randperm(): argument 'n' must be int, not {type(n).__name__}")
    count = operator.index(n)
    if count < 0:
        text = f"Trying to create tensor with negative dimension {count}: [{count}]"
        raise RuntimeError(text if out is None else f"n must be non-negative, got{count}")
    if out is None:
        as_type = as_dtype(np.int64 if dtype is None else dtype)
    else:
        wanted = None if device is None else resolve(device)
        check_out("randperm", out, None if dtype is None else as_dtype(dtype), wanted)
        as_type = out.numpy_dtype
    _check_dtype(count, as_type)
    made = empty_for("randperm", (count,), None, out, as_type, device, pin_memory)
    if as_type.kind in "bc" or torch_name(as_type) in {"", "uint16", "uint32", "uint64"}:
        raise not_implemented(f"arange_{made.device.kind}", as_type)
    if count:
        _shuffle(made, generator)
    return made


def _check_dtype(count: int, dtype: np.dtype[Any]) -> None:
    """Raise PyTorch's RuntimeError unless the dtype can represent all the integers."""
    digits = torch_type(dtype).digits
    if digits:
        largest = float(np.finfo(dtype).max) if dtype.name == "float16" else math.inf
    else:
        largest = np.iinfo(dtype).max if dtype.kind in "iu" else math.inf
    if count - 1 > largest:
        name = _CAST_NAMES.get(dtype.name, f"{dtype.name}_t")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")
    if digits and dtype.name != "bfloat16" and count > (1 << digits) + 1:
        bound = str((1 << digits) + 1) if digits == 11 else f"2^{digits}+1"
        raise RuntimeError(f"n cannot be greater than {bound} for {torch_type(dtype).name} type.")
    if count > _INT32_MAX:
        raise RuntimeError("cub sort does not support sorting more than INT_MAX elements")


def _shuffle(target: Tensor, generator: Generator | None) -> None:
    count = target.numel()
    bits = key_bits(count)
    width = 32 if bits <= 32 else 64
    keys = empty((count,), dtype=f"int{width}", device=target.device)
    fill.integers(keys, -1 << (width - 1), (1 << (width - 1)) - 1, generator)
    if target.numpy_dtype.name == "bfloat16":  # PyTorch raises this after drawing the keys
        raise not_implemented(f"randperm_out_{target.device.kind}", target.numpy_dtype)
    seed, offset = drawing.generator_for(target, generator, "randperm").advance(count)
    opened = target.raw_storage.opened
    stream, props = current_stream_for(opened), opened.port.props
    if (props.host_visible or props.queue_visible) and can_launch(stream.queue):

        def sort(drawn: Arrays, permuted: Arrays) -> None:
            np.copyto(permuted[0], permutation(drawn[0], bits, seed, offset), casting="unsafe")

        run_on_arrays([stream], [keys], [target], sort, name="randperm")
    else:
        transfer.copy_array(target, permutation(transfer.read(keys), bits, seed, offset), non_blocking=False)


def key_bits(count: int) -> int:
    """Return the number of key bits to sort by: enough for unique keys in 90 % of permutations."""
    n = float(count)
    return min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (math.log(0.9) * 12))))


def permutation(keys: NDArray[Any], bits: int, seed: int, offset: int) -> NDArray[np.int64]:
    """Return the permutation that sorts the keys by their low bits, with runs of equal keys shuffled by Philox.

    The thread of a run's first position shuffles the run, starting with its last element.
    """
    order, low_bits = _argsort(keys, bits)
    equal = np.flatnonzero(low_bits[1:] == low_bits[:-1])  # to the next element
    run_starts = equal[np.flatnonzero(np.diff(equal, prepend=-2) != 1)]
    for start in run_starts.tolist():
        end = start + int(np.searchsorted(low_bits[start:], low_bits[start], side="right"))
        for turn, last in enumerate(range(end - 1, start, -1)):
            word = philox(seed, start, offset // 4 + turn // 4)[turn % 4]
            other = start + word % (last - start + 1)
            order[[last, other]] = order[[other, last]]
    return order


def _argsort(keys: NDArray[Any], bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the stable argsort of the keys by their low bits, and the sorted low bits."""
    low = keys.view(f"u{keys.itemsize}").astype(np.uint64)
    if bits == 8 * keys.itemsize:  # all bits: signed order, so negative keys come first
        low ^= np.uint64(1 << (bits - 1))
    else:
        low &= np.uint64((1 << bits) - 1)
    index_bits = max(len(low) - 1, 1).bit_length()
    if bits + index_bits > 64:
        order: NDArray[np.int64] = np.argsort(low, kind="stable")
        return order, low[order]
    both = low << np.uint64(index_bits) | np.arange(len(low), dtype=np.uint64)  # three times as fast as argsort
    both.sort()
    return (both & np.uint64((1 << index_bits) - 1)).astype(np.int64), both >> np.uint64(index_bits)


def philox(seed: int, subsequence: int, draw: int) -> tuple[int, int, int, int]:
    """Return the four words of one Philox call. A Python reference for few words and for checking the kernels."""
    a, b, c, d = (
        draw & _MASK,
        draw >> 32 & _MASK,
        subsequence & _MASK,
        subsequence >> 32 & _MASK,
    )
    for round_ in range(10):
        k, h = seed + round_ * 0x9E3779B9 & _MASK, (seed >> 32) + round_ * 0xBB67AE85 & _MASK
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = q >> 32 ^ b ^ k, q & _MASK, p >> 32 ^ d ^ h, p & _MASK
    return a, b, c, d
