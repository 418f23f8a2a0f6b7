"""`torch.Generator` of an emulated device."""

from __future__ import annotations

from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
import torch

from forebay._base.device_spec import Device
from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.random.generator import Generator, default_generator
from forebay.runtime.streams.stream import current_stream_for

__all__ = [
    "EmulatedGenerator",
    "GeneratorFactory",
    "emulated_generator",
    "generator_of",
    "host_generator",
    "to_bytes",
    "to_tensor",
]

_HostGenerator = torch.Generator  # before it is replaced


def to_tensor(state: Any) -> torch.Tensor:
    """Return the bytes of a generator's state as PyTorch's tensor."""
    return torch.from_numpy(np.array(state.numpy(), dtype=np.uint8))


def to_bytes(state: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a state in PyTorch's tensor as an array."""
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.device.type != "cpu":
        raise TypeError("expected a torch.ByteTensor on the CPU")
    return np.ascontiguousarray(state.numpy())


_by_address: WeakValueDictionary[int, EmulatedGenerator] = WeakValueDictionary()


def emulated_generator(generator: torch.Generator) -> Generator | None:
    """Return forebay's generator of one that PyTorch passes to a kernel (another object); None for the CPU's."""
    known = _by_address.get(generator._cdata)
    return None if known is None else known.emulated


_GOLDEN = 0x9E3779B97F4A7C15  # mixes the seed and the offset


def generator_of(opened: OpenDevice, given: torch.Generator | None) -> Generator:
    """Return forebay's generator of an argument; None is the default one of the device."""
    if given is None:
        return default_generator(opened.device)
    emulated = emulated_generator(given)
    if emulated is None:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{given.device.type}'")
    return emulated


def host_generator(device: torch.device, given: torch.Generator | None = None) -> torch.Generator:
    """Return a generator of the CPU, seeded from that of the device, which advances."""
    opened = open_torch_device(device)
    if current_stream_for(opened).is_capturing():  # the replays draw
        return torch.Generator().manual_seed(0)
    seed, offset = generator_of(opened, given).philox.advance(4, opened)
    return torch.Generator().manual_seed((seed + (offset + 1) * _GOLDEN) % (1 << 63))


class EmulatedGenerator(_HostGenerator):  # type: ignore[misc, valid-type]  # its type is unknown where PyTorch is not installed
    """Generator of an emulated CUDA device."""

    emulated: Generator

    def __new__(cls, device: Any = "cuda") -> Self:
        spec = torch.device(device)
        index = current.current_index("cuda") if spec.index is None else spec.index
        return cls.of(Generator(Device("cuda", index)))

    @classmethod
    def of(cls, emulated: Generator) -> Self:
        """Return PyTorch's generator for one of forebay's."""
        made: Self = super().__new__(cls)  # a generator of the CPU, whose numbers are not used
        made.emulated = emulated
        _by_address[made._cdata] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return EmulatedGenerator, (str(self.device),), self.get_state()

    def __setstate__(self, state: torch.Tensor) -> None:
        self.set_state(state)

    def clone_state(self) -> EmulatedGenerator:
        """Return a generator with the same state."""
        return self.of(self.emulated.clone_state())

    def graphsafe_get_state(self) -> EmulatedGenerator:
        """Return a generator that shares this one's state."""
        return self.of(self.emulated.graphsafe_get_state())

    def graphsafe_set_state(self, state: EmulatedGenerator) -> EmulatedGenerator:
        """Share the state of another generator."""
        self.emulated.graphsafe_set_state(state.emulated)
        return self

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device("cuda", self.emulated.device.index or 0)

    def manual_seed(self, seed: int) -> EmulatedGenerator:
        """Set the seed."""
        self.emulated.manual_seed(seed)
        return self

    def seed(self) -> int:
        """Set a random seed, and return it."""
        return self.emulated.seed()

    def initial_seed(self) -> int:
        """Return the seed."""
        return self.emulated.initial_seed()

    def get_state(self) -> torch.Tensor:
        """Return the state as 16 bytes."""
        return to_tensor(self.emulated.get_state())

    def set_state(self, new_state: torch.Tensor) -> EmulatedGenerator:
        """Set the state."""
        self.emulated.set_state(to_bytes(new_state))
        return self

    def get_offset(self) -> int:
        """Return the Philox offset."""
        return self.emulated.get_offset()

    def set_offset(self, offset: int) -> EmulatedGenerator:
        """Set the Philox offset."""
        self.emulated.set_offset(offset)
        return self


class _AnyGenerator(type(_HostGenerator)):  # type: ignore[misc]  # as above
    """Metaclass for which generators of all devices are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _HostGenerator)


class GeneratorFactory(_HostGenerator, metaclass=_AnyGenerator):  # type: ignore[misc, valid-type]  # its type is unknown where PyTorch is not installed
    """`torch.Generator` while devices are emulated: creates a generator of any device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return EmulatedGenerator(device) if torch.device(device).type == "cuda" else _HostGenerator(device)
