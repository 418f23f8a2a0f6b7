"""Seeding a kind's devices, and the states of their generators. Seeds wait for the kind's first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forebay.device_spec import Device
from forebay.faces.kind import Kind
from forebay.runtime.devices.current import local
from forebay.runtime.random import generator as generators
from forebay.runtime.random.generator import Generator, default_generator

__all__ = ["Randoms"]

_Result = TypeVar("_Result")


class Randoms:
    """Of one kind. A state is seed and offset in a NumPy array, the same bytes that PyTorch's tensor holds."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._first = kind.initialisation
        self._word = kind.name  # `get_rng_state(device="cuda")`: what to say for the current device

    def default_generators(self) -> tuple[Generator, ...]:
        """One for each device; none before the kind's first use."""
        return tuple(map(self._generator, range(self._kind.count()))) if self._kind.initialised else ()

    def at_hand(self) -> Generator | None:
        """That of this thread's current device, if it is one of the kind and initialised: the fast way."""
        place = local.here.device
        if place is None or place.kind != self._word or not self._first.done:
            return None
        return default_generator(place)

    def get_rng_state(self, device: Any = None) -> NDArray[np.uint8]:
        """The state of the device's generator. Initialises the kind; IndexError where there is no device."""
        return self.generator(device).get_state()

    def set_rng_state(self, new_state: Any, device: Any = None) -> None:
        """Let the device's generator go on from a state. RuntimeError, TypeError for what is none."""
        kept = generators.checked_state(new_state, self._kind.name)  # it may change before it is needed
        index = self._named(device)
        self._later(lambda: self.generator(index).set_state(kept))

    def get_rng_state_all(self) -> list[NDArray[np.uint8]]:
        """The states of all devices."""
        return [self.get_rng_state(index) for index in range(self._kind.count())]

    def set_rng_state_all(self, new_states: Iterable[Any]) -> None:
        """One state for each device, from the first on; IndexError where there are more than devices."""
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator, at the kind's first use if that is to come."""
        number, known = int(seed), self.at_hand()
        if known is None:
            self._later(lambda: self.generator().manual_seed(number), "one")
        else:
            known.manual_seed(number)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices, at the kind's first use if that is to come."""
        number = int(seed)
        self._later(lambda: self._each(lambda made: made.manual_seed(number)), "all")

    def seed(self) -> None:
        """Seed the current device's generator at random."""
        self.new_seed()

    def seed_all(self) -> None:
        """Seed the generators of all devices with one random number."""
        self.new_seed_all()

    def new_seed(self) -> int | None:
        """Seed the current device's generator at random, and give the seed; None before the kind's first use."""
        return self._later(lambda: self.generator().seed(), "one")

    def new_seed_all(self) -> int | None:
        """Seed the generators of all devices with one random number, and give it; None before the kind's first use."""

        def seed_them() -> int:
            number = self._generator(0).seed()
            self._each(lambda made: made.manual_seed(number))
            return number

        return self._later(seed_them, "all")

    def initial_seed(self) -> int:
        """The seed of the current device's generator. Initialises the kind."""
        return self.generator().initial_seed()

    def set_offset(self, offset: int, device: Any = None) -> None:
        """Where the device's generator goes on; RuntimeError unless it is a multiple of 4."""
        index = self._named(device)
        self._later(lambda: self.generator(index).set_offset(offset))

    def get_offset(self, device: Any = None) -> int:
        """How many words each thread of the device has drawn. Initialises the kind."""
        return self.generator(device).get_offset()

    def generator(self, device: Any = None) -> Generator:
        """The device's, or the current one's. Initialises the kind; IndexError where there is no such device."""
        named = self._named(device)
        index = self._kind.current_index() if named is None else named
        self._kind.initialisation.ensure()
        return self._generator(index)

    def _generator(self, index: int) -> Generator:
        if index not in range(self._kind.count()):
            raise IndexError(f"there is no {self._word}:{index}, so it has no generator")
        return default_generator(self._kind.named(index))

    def _named(self, device: Any) -> int | None:
        """An index, or None for whichever is current then."""
        if isinstance(device, int) or device is None:
            return device
        return Device(device).index

    def _each(self, do: Callable[[Generator], object]) -> None:
        for index in range(self._kind.count()):
            do(self._generator(index))

    def _later(self, function: Callable[[], _Result], seeds: str = "") -> _Result | None:
        found: _Result | None = self._kind.initialisation.call(function, seeds=seeds)
        return found
