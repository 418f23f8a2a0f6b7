"""Kernels that draw random numbers: those of the emulated GPU, bit for bit where forebay knows them.

Uniform, normal, exponential, Bernoulli, integer and other fills of one launch are the GPU's. Operators that PyTorch computes
with kernels of another form (dropout, permutations, multinomial and Poisson) draw from a generator of the CPU that is
seeded from the GPU's: reproducible, but not the GPU's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from forebay.interop.torch import values
from forebay.interop.torch.emulated_memory import adopt, alias, open_torch_device
from forebay.interop.torch.generators import emulated_generator
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.random import fill
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["RANDOM_KERNELS", "host_generator"]

_NUMPY = {
    torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64, torch.bool: np.bool_,
    torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64, torch.uint8: np.uint8,
    torch.complex64: np.complex64, torch.complex128: np.complex128,
}  # fmt: skip
_GOLDEN = 0x9E3779B97F4A7C15  # mixes the seed and the offset


def _generator(opened: OpenDevice, given: torch.Generator | None) -> Generator:
    if given is None:
        return default_generator(opened.device)
    emulated = emulated_generator(given)
    if emulated is None:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{given.device.type}'")
    return emulated


def host_generator(device: torch.device, given: object = None) -> torch.Generator:
    """Return a generator of the CPU, seeded from that of the device, which advances."""
    opened = open_torch_device(device)
    seed, offset = _generator(opened, given).advance_on(opened, 4)
    return torch.Generator().manual_seed((seed + (offset + 1) * _GOLDEN) % (1 << 63))


def _draw(target: torch.Tensor, generator: object, function: Callable[..., None], *arguments: Any) -> torch.Tensor:
    """Draw into the values of a tensor."""
    if not values.is_computed():
        return target
    opened = open_torch_device(target.device)
    elements = alias(target)
    if (dtype := _NUMPY.get(target.dtype)) is None:  # bfloat16, for instance: the GPU computes float32, and rounds
        elements = torch.empty_strided(target.shape, target.stride(), dtype=torch.float32)
        dtype = np.float32
    memory = Storage(opened, elements.untyped_storage().nbytes(), elements.data_ptr(), elements)
    strides = tuple(stride * elements.itemsize for stride in elements.stride())
    function(Tensor(memory, np.dtype(dtype), tuple(elements.shape), strides), *arguments, _generator(opened, generator))
    current_stream_for(opened).synchronize()
    if dtype is np.float32 and target.dtype != torch.float32:
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
    return adopt(result, opened), adopt(mask, opened)


def _with_host_generator(operator: Any, place: str) -> Callable[..., Any]:
    """Return a kernel that calls PyTorch's with a generator of the CPU. `place` names a result argument, or is ""."""

    def kernel(*args: Any, generator: Any = None, **keywords: Any) -> Any:
        tensors = [each for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)]
        device = tensors[0].device
        keywords = {name: alias(each) if isinstance(each, torch.Tensor) else each for name, each in keywords.items()}
        given = [alias(each) if isinstance(each, torch.Tensor) and each.is_cuda else each for each in args]
        result = operator(*given, generator=host_generator(device, generator), **keywords)
        if place:
            return tensors[-1]
        return adopt(result, open_torch_device(device))

    return kernel


_aten = torch.ops.aten
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
    "aten::native_dropout": _dropout,
    "aten::multinomial": _with_host_generator(_aten.multinomial.default, ""),
    "aten::poisson": _with_host_generator(_aten.poisson.default, ""),
    "aten::randperm.generator_out": _with_host_generator(_aten.randperm.generator_out, "out"),
}
