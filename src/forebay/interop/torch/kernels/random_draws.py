"""Kernels that draw random numbers: those of the emulated GPU, bit for bit where forebay knows them.

Uniform, normal, exponential, Bernoulli, integer and other fills of one launch are the GPU's. Operators that PyTorch
computes with kernels of another form (dropout, permutations, multinomial and Poisson) draw from a generator of the CPU
that is seeded from the GPU's: reproducible, but not the GPU's numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from forebay.interop.torch.assumptions.elements import Elements, note_elements
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, open_torch_device
from forebay.interop.torch.devices.generators import generator_of, host_generator
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.scratch_memory import Scratch, nbytes_of
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.random import fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["DROPOUT_KERNELS", "RANDOM_KERNELS"]

_NUMPY = {
    torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_,
    torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64, torch.uint8: np.uint8,
    torch.complex64: np.complex64, torch.complex128: np.complex128,
}  # fmt: skip


_checked: set[Any] = set()
_MOST_CHECKED = 4096


def _check_draw(
    opened: OpenDevice, dtype: torch.dtype, function: Callable[..., None], arguments: Sequence[Any]
) -> None:  # fmt: skip
    """Raise the error of a draw of one number, whose type and bounds are checked as with values."""
    key = dtype, function, *arguments
    if key in _checked or _NUMPY.get(dtype) is None or current_stream_for(opened).is_capturing():
        return
    element = torch.empty(1, dtype=dtype, device="cpu")
    memory = Storage(opened, element.untyped_storage().nbytes(), element.data_ptr(), element)
    function(Tensor(memory, np.dtype(_NUMPY[dtype]), (1,), (element.itemsize,)), *arguments, Generator(opened.device))
    current_stream_for(opened).synchronize()
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add(key)


def _draw(target: torch.Tensor, generator: object, function: Callable[..., None], *arguments: Any) -> torch.Tensor:
    """Draw into the values of a tensor."""
    opened = open_torch_device(target.device)
    if not values.is_computed():
        _check_draw(opened, target.dtype, function, arguments)
        forget_values(target)
        if function is fill.integers and arguments[1] is not None:
            low, high = arguments
            note_elements(target, Elements("random_", None, low, high - 1))
        if current_stream_for(opened).is_capturing():
            generator_of(opened, generator).philox.advance(4, opened)  # the graph takes memory for the state
        return target
    elements = alias(target)
    if (dtype := _NUMPY.get(target.dtype)) is None:  # bfloat16, for instance: the GPU computes float32, and rounds
        elements = torch.empty_strided(target.shape, target.stride(), dtype=torch.float32)
        dtype = np.float32
    memory = Storage(opened, elements.untyped_storage().nbytes(), elements.data_ptr(), elements)
    strides = tuple(stride * elements.itemsize for stride in elements.stride())
    function(
        Tensor(memory, np.dtype(dtype), tuple(elements.shape), strides), *arguments, generator_of(opened, generator)
    )
    stream, rounded = current_stream_for(opened), elements.dtype != target.dtype
    if stream.is_capturing():
        if rounded:
            final = alias(target)
            stream.queue.call(lambda: final.copy_(elements))  # type: ignore[attr-defined]  # queues of emulated devices launch
        return target
    stream.synchronize()
    if rounded:
        alias(target).copy_(elements)
    return target


def _uniform(target: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.uniform, low, high)


def _normal(target: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.normal, mean, std)


def _random(target: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.integers_below)


def _random_to(target: torch.Tensor, to: int, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.integers, 0, to)


def _random_from(target: torch.Tensor, low: int, high: int | None, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.integers, low, high)


def _exponential(target: torch.Tensor, lambd: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.exponential, lambd)


def _bernoulli(target: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.bernoulli, p)


def _cauchy(target: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.cauchy, median, sigma)


def _log_normal(target: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.log_normal, mean, std)


def _geometric(target: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
    return _draw(target, generator, fill.geometric, p)


def _dropout(tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    opened = open_torch_device(tensor.device)
    given = alias(tensor)
    if train is False or not given.numel():
        mask = torch.ones_like(given, dtype=torch.bool)
        result = given.clone()
    else:
        mask = torch.empty_like(given, dtype=torch.bool)
        if values.is_computed():
            mask.bernoulli_(1 - p, generator=host_generator(tensor.device))
        result = given * mask * (0.0 if p == 1 else 1 / (1 - p))
    mask = adopt(mask, opened)  # allocated first, as the kernel of CUDA does
    return adopt(result, opened), mask


def _bernoulli_tensor(target: torch.Tensor, p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    chances = p.to(target.device).expand(target.shape).contiguous()
    wide = torch.float64 if target.dtype == torch.float64 else torch.float32
    if p.dtype != wide:
        with Scratch(target.device) as scratch:
            scratch.take(nbytes_of(chances, wide))
    if not values.is_computed():
        forget_values(target)
        return target
    opened = open_torch_device(target.device)
    given = alias(chances).to(wide)
    memory = Storage(opened, given.untyped_storage().nbytes(), given.data_ptr(), given)
    strides = tuple(stride * given.itemsize for stride in given.stride())
    dtype = np.dtype(np.float64 if given.dtype == torch.float64 else np.float32)
    return _draw(target, generator, fill.bernoulli, Tensor(memory, dtype, tuple(given.shape), strides))


def _bernoulli_like(p: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
    _check_chances(p)
    return torch.empty_like(p).bernoulli_(p, generator=generator)


def _check_chances(p: torch.Tensor) -> None:
    if not p.dtype.is_floating_point:
        name = re.sub(r"torch\.(cuda\.)?|Tensor", "", torch.empty(0, dtype=p.dtype, device="meta").type())
        raise RuntimeError(f"expected probabilities tensor to have floating type, got {name}")


def _bernoulli_out(p: torch.Tensor, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    return out.resize_(p.shape).bernoulli_(p, generator=generator)


def _normal_of(mean: Any, std: Any, *, generator: Any = None) -> torch.Tensor:
    """Return numbers about `mean`. CUDA's kernel checks the deviation before it allocates, and again after."""
    given = [each for each in (mean, std) if isinstance(each, torch.Tensor)]
    _check_deviation(std)
    if not isinstance(std, torch.Tensor) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std:g}")
    shape = torch.broadcast_shapes(*(each.shape for each in given))
    made = torch.empty(shape, dtype=given[0].dtype, device=given[0].device)
    _check_deviation(std)
    # The deviation or the mean as a tensor.
    other = [torch.empty(shape if each is std else (), dtype=made.dtype, device=made.device)
             for each in (mean, std) if not isinstance(each, torch.Tensor)]  # fmt: skip
    made.normal_(generator=generator).mul_(std).add_(mean)
    del other
    return made


def _check_deviation(std: Any) -> None:
    if isinstance(std, torch.Tensor) and std.numel() and not std.is_complex():
        least = std.min()
        positive = least >= 0
        refused = values.is_computed() and not alias(positive).item()
        del positive  # before the other, as C++ does
        if refused:
            raise RuntimeError("normal expects all elements of std >= 0.0")


def _multinomial(
    given: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> torch.Tensor:  # fmt: skip
    """Return places drawn by their weights, which CUDA's kernel checks first."""
    result: torch.Tensor = _compute_multinomial(given, num_samples, replacement, generator=generator)
    if not given.numel():
        return result
    with Scratch(given.device) as scratch:
        if replacement and num_samples > 1:
            for _ in range(2):  # the distribution, and the sums of the weights before each
                scratch.take(nbytes_of(given))
            return result
        largest, least = given.max(), given.min()
        valid = (largest < math.inf) & (least >= 0)
        total = given.sum(-1)
        empty = total == 0
        if empty.dim():
            rows = empty
            empty = rows.any()
            del rows
        del total
        scratch.free(scratch.take(1))
        scratch.take(nbytes_of(given))
        if num_samples > 1:
            scratch.take(result.numel() * given.itemsize)
        scratch.close()
        del empty
        del valid
        del least
    return result


_compute_multinomial = generic_kernel(torch.ops.aten.multinomial.default, values.device)
RANDOM_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::uniform_": _uniform,
    "aten::normal_": _normal,
    "aten::random_": _random,
    "aten::random_.to": _random_to,
    "aten::random_.from": _random_from,
    "aten::exponential_": _exponential,
    "aten::bernoulli_.float": _bernoulli,
    "aten::cauchy_": _cauchy,
    "aten::log_normal_": _log_normal,
    "aten::geometric_": _geometric,
    "aten::bernoulli": _bernoulli_like,
    "aten::bernoulli.out": _bernoulli_out,
    "aten::bernoulli_.Tensor": _bernoulli_tensor,
    "aten::normal.Tensor_float": lambda mean, std=1.0, *, generator=None: _normal_of(mean, std, generator=generator),
    "aten::normal.float_Tensor": _normal_of,
    "aten::normal.Tensor_Tensor": _normal_of,
}
# Not draws in the queue: the graph that captures them runs the kernels again.
DROPOUT_KERNELS: dict[str, Callable[..., Any]] = {"aten::native_dropout": _dropout, "aten::multinomial": _multinomial}
