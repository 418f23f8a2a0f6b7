"""Fourier transforms on emulated devices: the layouts of cuFFT's results, and the copies that it needs of some inputs.

Values are those of the CPU. Layouts and copies agree with PyTorch 2.15 over the oracle. The workspaces that cuFFT asks
for are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices.emulated_memory import adopt, allocate_bytes, is_replaying, open_torch_device
from forebay.interop.torch.kernels.scratch_memory import Scratch, by_capability, nbytes_of, values_of
from forebay.interop.torch.kernels.transform_layouts import clones_input, laid_out, layout_of, order_of
from forebay.interop.torch.kernels.wide_types import over_values
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock

__all__ = ["TRANSFORM_KERNELS"]

_aten = torch.ops.aten
_TOGETHER = 3  # dimensions that cuFFT transforms at once
_compute_real = over_values(_aten._fft_c2r.default)
_compute_complex = over_values(_aten._fft_r2c.default)
_compute_both = over_values(_aten._fft_c2c.default)


class _Buffers:
    """The buffers of results between which the steps of a transform alternate: the last one written is the result."""

    def __init__(self, opened: OpenDevice, nbytes: int) -> None:
        self._opened, self._nbytes = opened, nbytes
        self._blocks: list[AnyBlock | None] = []
        self._last = 0
        self.add()

    def add(self) -> None:
        """Allocate another buffer."""
        self._blocks.append(None if is_replaying() else allocate_bytes(self._opened, self._nbytes))

    def swap(self) -> None:
        """Write the other buffer, which is allocated if there is none yet."""
        if len(self._blocks) == 1:
            self.add()
        self._last = 1 - self._last

    def give(self, found: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
        """Return the values in a layout as a tensor of the device, over the buffer that was written last."""
        block = self._blocks.pop(self._last)
        return adopt(laid_out(found, layout), self._opened, block)


def _run(
    opened: OpenDevice, source: torch.Tensor, dims: Sequence[int], sizes: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """Take and free the copies of a step of cuFFT. Return the layout of its result."""
    order = order_of(source, dims)
    inputs = source.permute(order)
    signal = [inputs.shape[at] for at in range(len(order) - len(dims), len(order))]
    batched = [source.numel() // torch.Size(signal).numel(), *signal]
    with Scratch(opened) as scratch:
        copy = None
        try:
            inputs = inputs.view(batched)
        except RuntimeError:  # its batch is no single dimension
            copy = scratch.take(nbytes_of(source))
            inputs = inputs.reshape(batched)
        full = [batched[0], *(max(one, sizes[at]) for one, at in zip(signal, dims, strict=True))]
        if clones_input(inputs, full):
            scratch.take(nbytes_of(source))
            if copy is not None:
                scratch.free(copy)
    return layout_of(order, sizes, dtype)


def _run_all(
    opened: OpenDevice, source: torch.Tensor, dims: Sequence[int], buffers: _Buffers, *, swaps_first: bool
) -> torch.Tensor:
    """Run the steps of a transform between complex numbers, the dimensions with the smallest strides first."""
    remaining, swaps = [*dims], swaps_first
    while remaining:
        if swaps:
            buffers.swap()
        remaining.sort(key=source.stride, reverse=True)
        source = _run(opened, source, remaining[-_TOGETHER:], source.shape, source.dtype)
        del remaining[-_TOGETHER:]
        swaps = True
    return source


def _is_one_step(dims: Sequence[int]) -> bool:
    """Return True if cuFFT transforms all dimensions at once, also between real and complex numbers."""
    return len(dims) <= _TOGETHER and [*dims[:2]] != [0, 1]


def _check_half(given: torch.Tensor, signal: Sequence[int]) -> None:
    """Raise cuFFT's error for halves unless all sizes are powers of two."""
    if given.dtype in (torch.float16, torch.complex32) and any(each & (each - 1) for each in signal):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a "
            f"signal size of{[*signal]}"
        )


def _to_real(given: torch.Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """Return a real result. cuFFT overwrites its input: a copy, or the transform of the other dimensions."""
    _check_half(given, [*(given.shape[at] for at in dim[:-1]), last_dim_size])
    found = _compute_real(values_of(given), dim, normalization, last_dim_size)
    opened, dims = open_torch_device(given.device), _positions(given, dim)
    if not found.numel():
        return adopt(found, opened)
    source = _layout_like(given)
    result = _Buffers(opened, nbytes_of(found))
    if _is_one_step(dims):
        with Scratch(opened) as scratch:
            scratch.take(nbytes_of(given))
            layout = _run(opened, source.contiguous(), dims, found.shape, found.dtype)
    else:
        others = _Buffers(opened, nbytes_of(given))
        between = _run_all(opened, source, dims[:-1], others, swaps_first=False)
        layout = _run(opened, between, dims[-1:], found.shape, found.dtype)
        del others
    return result.give(found, layout)


def _from_real(given: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    """Return a complex result: of all dimensions, or of the last one first."""
    _check_half(given, [given.shape[at] for at in dim])
    found = _compute_complex(values_of(given), dim, normalization, onesided)
    opened, dims = open_torch_device(given.device), _positions(given, dim)
    if not found.numel():
        return adopt(found, opened)
    if given.dtype == torch.bfloat16:
        return _from_bfloat16(given, found, dims)
    return _from_real_layout(opened, _layout_like(given), found, dims, is_odd=_is_odd(given))


def _from_real_layout(
    opened: OpenDevice, source: torch.Tensor, found: torch.Tensor, dims: Sequence[int], *, is_odd: bool
) -> torch.Tensor:  # fmt: skip
    sizes = [*found.shape]
    half = source.shape[dims[-1]] // 2 + 1
    buffers = _Buffers(opened, nbytes_of(found))
    with Scratch(opened) as scratch:
        if is_odd:
            source = _aligned(scratch, source, dims[-1])
        if _is_one_step(dims):
            layout = _run(opened, source, dims, sizes, found.dtype)
        else:
            sizes[dims[-1]] = half
            layout = _run(opened, source, dims[-1:], sizes, found.dtype)
            layout = _run_all(opened, layout, dims[:-1], buffers, swaps_first=True)
            if layout.shape != found.shape:  # the other half is written into the other buffer
                buffers.swap()
                layout = torch.empty(found.shape, dtype=found.dtype, device="meta")
    return buffers.give(found, layout)


def _from_bfloat16(given: torch.Tensor, found: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return a result in single precision, of bfloat16 if cuFFT computes with it, else of a copy."""
    opened, source = open_torch_device(given.device), _layout_like(given)
    powers = all(not given.shape[at] & (given.shape[at] - 1) for at in dims)
    if not (powers and _is_one_step(dims) and by_capability(opened, _has_bfloat16, "transforms")):
        with Scratch(opened) as scratch:
            scratch.take(nbytes_of(given, torch.float32))
            copied = torch.empty_like(source, dtype=torch.float32)
            return _from_real_layout(opened, copied, found, dims, is_odd=False)
    sizes = [*found.shape]
    sizes[dims[-1]] = given.shape[dims[-1]] // 2 + 1
    count = torch.Size(sizes).numel()
    with Scratch(opened) as scratch:
        scratch.take(count * 2 * given.itemsize)
        if _is_odd(given):
            source = _aligned(scratch, source, dims[-1])
        layout = _run(opened, source, dims, sizes, found.dtype)
        if sizes == [*found.shape]:
            return _Buffers(opened, nbytes_of(found)).give(found, layout)
        scratch.take(count * found.itemsize)
        return _Buffers(opened, nbytes_of(found)).give(found, torch.empty(found.shape, device="meta"))


def _has_bfloat16(version: tuple[int, int]) -> bool:
    return version >= (8, 0)


def _of_complex(given: torch.Tensor, dim: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    """Return a complex result of complex numbers."""
    _check_half(given, [given.shape[at] for at in dim])
    found = _compute_both(values_of(given), dim, normalization, forward)
    opened = open_torch_device(given.device)
    if not dim or not found.numel():
        return adopt(found, opened)
    buffers = _Buffers(opened, nbytes_of(found))
    layout = _run_all(opened, _layout_like(given), _positions(given, dim), buffers, swaps_first=False)
    return buffers.give(found, layout)


def _positions(given: torch.Tensor, dim: Sequence[int]) -> list[int]:
    return [each % given.dim() for each in dim]


def _layout_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory with the type, the shape and the strides of one."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_odd(given: torch.Tensor) -> bool:
    """Return True if a real tensor begins where a complex number may not, as cuFFT reads it."""
    return bool(given.storage_offset() % 2)


def _aligned(scratch: Scratch, source: torch.Tensor, last: int) -> torch.Tensor:
    """Take a copy of a real input, with the dimension `last` in order. Return its layout."""
    scratch.take(nbytes_of(source))
    moved = source.movedim(last, -1)
    return torch.empty(moved.shape, dtype=source.dtype, device="meta").movedim(-1, last)


TRANSFORM_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_fft_c2r": _to_real,
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_r2c": _from_real,
}
