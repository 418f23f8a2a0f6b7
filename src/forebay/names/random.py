"""Seeds and generator states of one device kind, under PyTorch's names. Seeds are queued until the first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from forebay._base.device_spec import Device, DeviceLike
from forebay.names.kind import DeviceKind
from forebay.runtime.devices.current import local
from forebay.runtime.random import generator as generators
from forebay.runtime.random.generator import Generator, RngState, default_generator
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["RandomFunctions"]

_Result = TypeVar("_Result")


class RandomFunctions:
    """Random number functions of one kind. A state has the bytes of PyTorch's state tensor: seed and offset."""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind
        self._init = kind.initialisation
        self._name = kind.name
        self._generators: tuple[Generator, ...] = ()
        self._devices: Mapping[int | None, Device] = kind.devices  # type: ignore[assignment]  # without a device for None
        self._spelled_index = kind.spelled_index

    def default_generators(self) -> tuple[Generator, ...]:
        """Return the default generator of each device, always the same tuple; empty before the kind's first use.

        Calls that are queued until the first use already see the generators.
        """
        if not (self._init.done or self._init.thread_state.is_initializing):
            return ()
        found = tuple(default_generator(self._kind.device_at(index)) for index in range(self._init.count))
        if found != self._generators:
            self._generators = found
        return self._generators

    def initialised_generator(self) -> Generator | None:
        """Return the current device's generator if that device is of this kind and the kind is in use (fast path)."""
        device = local.state.device
        if device is None or device.kind != self._name or not self._init.done:
            return None
        return default_generator(device)

    # Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices.

        Queued until the kind's first use.

        Parameters
        ----------
        seed : int
            From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64.
        """
        number = int(seed)
        self._call_or_queue(lambda: self._for_each_generator(lambda generator: generator.manual_seed(number)), "all")

    def seed_all(self) -> None:
        """Seed the generators of all devices with the same random number.

        Queued until the kind's first use.
        """
        self.seed_all_and_return()

    def initial_seed(self) -> int:
        """Return the seed of the current device's generator.

        Initialises the kind.

        Returns
        -------
        int
            The seed.
        """
        return self.generator().initial_seed()

    def get_rng_state(self, device: DeviceLike | None = None) -> Tensor:
        """Return the state of a device's generator.

        Initialises the kind.

        Parameters
        ----------
        device : device or str or int, optional
            The device; the current one by default.

        Returns
        -------
        Tensor
            Seed and offset, the bytes of PyTorch's state tensor.

        Raises
        ------
        IndexError
            If the device does not exist.
        """
        return self.generator(device).get_state()

    def set_rng_state(self, new_state: RngState, device: DeviceLike | None = None) -> None:
        """Set the state of a device's generator.

        Queued until the kind's first use.

        Parameters
        ----------
        new_state : Tensor or numpy.ndarray
            A state that `get_rng_state` returned, here or in PyTorch.
        device : device or str or int, optional
            The device; the current one by default.

        Raises
        ------
        RuntimeError
            If the state has the wrong size.
        TypeError
            If `new_state` is not an array of uint8.
        """
        state = generators.checked_state(new_state, self._kind.name)  # a copy: the caller may change `new_state`
        index = self._explicit_index(device)
        self._call_or_queue(lambda: self.generator(index).set_state(state))

    def get_rng_state_all(self) -> list[Tensor]:
        """Return the states of the generators of all devices.

        Initialises the kind if there is a device.

        Returns
        -------
        list of Tensor
            One state per device.
        """
        return [self.get_rng_state(index) for index in range(self._kind.count())]

    def set_rng_state_all(self, new_states: Iterable[RngState]) -> None:
        """Set the states of the generators of all devices.

        Queued until the kind's first use.

        Parameters
        ----------
        new_states : iterable
            One state per device, from device 0 on.

        Raises
        ------
        IndexError
            If there are more states than devices.
        """
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    def seed(self) -> None:
        """Seed the current device's generator with a random number.

        Queued until the kind's first use.
        """
        self.seed_and_return()

    def seed_and_return(self) -> int | None:
        """Seed the current device's generator with a random number and return that number.

        Returns
        -------
        int or None
            The seed; None if the call is queued until the kind's first use.
        """
        return self._call_or_queue(lambda: self.generator().seed(), "one")

    # End of the written lines.

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator.

        Queued until the kind's first use.

        Parameters
        ----------
        seed : int
            From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64.
        """
        number, generator = int(seed), self.initialised_generator()
        if generator is None:
            self._call_or_queue(lambda: self.generator().manual_seed(number), "one")
        else:
            generator.manual_seed(number)

    def seed_all_and_return(self) -> int | None:
        """Seed the generators of all devices with the same random number and return that number.

        Returns
        -------
        int or None
            The seed; None if the call is queued until the kind's first use.
        """

        def seed_generators() -> int:
            number = self._generator(0).seed()
            self._for_each_generator(lambda generator: generator.manual_seed(number))
            return number

        return self._call_or_queue(seed_generators, "all")

    def set_offset(self, offset: int, device: DeviceLike | None = None) -> None:
        """Set the offset of a device's generator; RuntimeError unless it is a multiple of 4."""
        index = self._explicit_index(device)
        self._call_or_queue(lambda: self.generator(index).set_offset(offset))

    def get_offset(self, device: DeviceLike | None = None) -> int:
        """Return the number of words that each device thread has drawn. Initialises the kind."""
        return self.generator(device).get_offset()

    def generator(self, device: DeviceLike | None = None) -> Generator:
        """Return a device's default generator. Initialises the kind; raises IndexError if there is no such device."""
        known = self._devices.get(self._spelled_index(device, True))
        if known is not None:
            return default_generator(known)
        explicit = self._explicit_index(device)
        index = self._kind.current_index() if explicit is None else explicit
        self._kind.initialisation.ensure()
        return self._generator(index)

    def _generator(self, index: int) -> Generator:
        if index not in range(self._kind.count()):
            raise IndexError("tuple index out of range")  # of `default_generators`
        return default_generator(self._kind.device_at(index))

    def _explicit_index(self, device: Any) -> int | None:
        """Return the index of a device argument; None selects the device that is current at the call's execution.

        As PyTorch, accepts devices of all kinds.
        """
        if device is None:
            return None
        if isinstance(device, int):
            return Device(self._name, device).index
        if not isinstance(device, (str, Device)):
            raise TypeError(f"argument 'device' must be forebay.device, not {type(device).__name__}")
        return Device(device).index

    def _for_each_generator(self, function: Callable[[Generator], object]) -> None:
        for index in range(self._kind.count()):
            function(self._generator(index))

    def _call_or_queue(self, function: Callable[[], _Result], seeds: str = "") -> _Result | None:
        result: _Result | None = self._kind.initialisation.call(function, seeds=seeds)
        return result
