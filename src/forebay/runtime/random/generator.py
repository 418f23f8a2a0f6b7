"""Generators: a seed and an offset, which say what random numbers come next. Each device has one by default.

None needs its device open, so seeding is for devices to come as well.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from forebay.device_spec import Device
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import device_count
from forebay.runtime.random.generator_states import Form, form_of, whole_fours
from forebay.runtime.random.launch_geometry import Geometry

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "Generator",
    "checked_state",
    "default_generator",
    "forget_in_child",
    "forget_kind",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_FIRST_SEED = 67280421310721  # of a generator that nobody seeded, as in PyTorch
_WHOLE = (1 << 64) - 1

_lock = threading.RLock()  # of every generator's state; a destructor may re-enter
_defaults: dict[Device, Generator] = {}
_recent: tuple[Device | None, Generator | None] = None, None  # the last that was asked for
_seeds: dict[str | None, int] = {}  # what all devices of a kind, or of any, were seeded with last


class Generator:
    """Says what random numbers come next, by Philox: those of its seed, from its offset on. (`torch.Generator`)

    Drawing moves the offset as PyTorch's kernels do, so a state taken from either continues in the other. `geometry` is
    the GPU whose numbers it gives: a profile's name, the two numbers of a `Geometry`, "reference" for what devices that
    are no GPU give; None for the device's own. Any thread may draw; each draw has numbers of its own.

    >>> import forebay
    >>> generator = forebay.Generator("host").manual_seed(0)
    >>> forebay.rand(3, device="host:0", generator=generator).numpy()
    array([0.39904648, 0.51667917, 0.02493039], dtype=float32)
    """

    def __init__(
        self, device: Device | str | int | None = None, *, geometry: Geometry | str | tuple[int, int] | None = None
    ) -> None:
        self.device = Device(device) if isinstance(device, (Device, str)) else current.resolve(device)
        self.geometry = geometry
        self._state = _FIRST_SEED, 0  # one object: who reads it needs no lock
        self._packed: tuple[tuple[int, int], NDArray[np.uint8]] = (0, 0), np.empty(0, np.uint8)

    @property
    def _form(self) -> Form:
        return form_of(self.device.kind)

    @property
    def geometry(self) -> Geometry | None:
        return self._geometry

    @geometry.setter
    def geometry(self, geometry: Geometry | str | tuple[int, int] | None) -> None:
        self._geometry = None if geometry is None else Geometry.of(geometry)

    def __repr__(self) -> str:
        seed, offset = self._state
        return f"<forebay.Generator device={self.device} seed={seed} offset={offset}>"

    def manual_seed(self, seed: int) -> Self:
        """Begin anew with this seed, from -2**63 to 2**64 - 1; those below 0 are taken modulo 2**64."""
        number = _long(seed, "manual_seed")
        if capture_state.under_way and self._captured() is not None:
            self._check_seed(number)
            return self
        with _lock:
            self._state = number, 0
        return self

    def seed(self) -> int:
        """Begin anew with a seed from the system's randomness; gives it."""
        self._check_not_captured("seed")
        number = _random_seed()
        self.manual_seed(number)
        return number

    def initial_seed(self) -> int:
        return self._state[0]

    def get_offset(self) -> int:
        """How many words each thread of the GPU has drawn."""
        self._check_not_captured("get_offset")
        return self._state[1]

    def set_offset(self, offset: int) -> Self:
        """Go on from there; RuntimeError unless it is a multiple of 4."""
        self._check_not_captured("set_offset")
        number = whole_fours(_long(offset, "manual_offset"))
        with _lock:
            self._state = self._state[0], number
        return self

    def get_state(self) -> NDArray[np.uint8]:
        """Seed and offset, in PyTorch's form: 16 bytes, of an MPS device 44.

        While a graph is captured, the offset counts from the start of each replay.
        """
        if capture_state.under_way and (capture := self._captured()) is not None:
            return np.frombuffer(self._form.pack(self._state[0], capture.drawn.get(self, 0)), np.uint8).copy()
        packed = self._packed
        state = self._state
        if packed[0] is not state:  # to pack takes twice as long as to copy
            packed = self._packed = state, np.frombuffer(self._form.pack(*state), np.uint8)
        return packed[1].copy()

    def set_state(self, new_state: NDArray[np.uint8] | Tensor) -> Self:
        """Go on from a state that `get_state` gave, here or in PyTorch; of 8 bytes, from the start of that seed."""
        seed, offset = self._form.unpack(checked_state(new_state, self.device.kind).tobytes())
        if capture_state.under_way and (capture := self._captured()) is not None:
            self._check_seed(seed)
            capture.drawn[self] = offset
            return self
        with _lock:
            self._state = seed, offset
        return self

    def clone_state(self) -> Generator:
        """Another one that goes on from here."""
        self._check_not_captured("clone_impl")
        cloned = Generator(self.device, geometry=self._geometry)
        cloned._state = self._state
        return cloned

    def take(self, words: int) -> tuple[int, int]:
        """Seed and offset for a kernel whose threads draw so many words each; the next kernel goes on behind them."""
        with _lock:
            seed, offset = self._state
            self._state = seed, (offset + -(-words // 4) * 4) & _WHOLE
            return seed, offset

    def take_on(self, opened: OpenDevice, words: int) -> tuple[int, int]:
        """The same for this thread's current stream there; where that is captured, in the terms of `spi.Captures`."""
        if capture_state.under_way:
            stream = current.here().streams.get(opened)
            if stream is not None and (capture := stream.capture) is not None:
                return capture.draw(self, words)
        return self.take(words)

    def _captured(self) -> capture_state.Capture | None:
        """What records this thread's work on devices of the kind."""
        streams = tuple(current.here().streams.items())
        found = (stream.capture for opened, stream in streams if opened.device.kind == self.device.kind)
        return next((capture for capture in found if capture is not None), None)

    def _check_not_captured(self, function: str) -> None:
        if capture_state.under_way and self._captured() is not None:
            word = self.device.kind.upper()
            raise RuntimeError(
                f"Cannot call {word}GeneratorImpl::{function} during {word} graph capture. If you need this call to be "
                f"captured, please file an issue. Current {self.device.kind}StreamCaptureStatus: "
                f"{self.device.kind}StreamCaptureStatusActive"
            )

    def _check_seed(self, seed: int) -> None:
        if seed != self._state[0]:
            word = self.device.kind.upper()
            raise RuntimeError(
                f"{word}GeneratorImpl::set_current_seed can be called during stream capture only if new seed is the "
                "same as the original seed."
            )


def _long(number: Any, function: str) -> int:
    if isinstance(number, (bool, np.bool_)) or not isinstance(number, (int, np.integer)):
        raise RuntimeError(f"{function} expected a long, but got {type(number).__name__}")  # noqa: TRY004 -- PyTorch's
    if not -1 << 63 <= number <= _WHOLE:
        raise ValueError("Overflow when unpacking long long")
    return int(number) & _WHOLE


def _random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits, which a float holds


def checked_state(new_state: Any, kind: str) -> NDArray[np.uint8]:
    """A copy of a state of the kind's generators; TypeError or RuntimeError for what is none."""
    state, form = _bytes_of(new_state), form_of(kind)
    if len(state) not in form.sizes:
        raise RuntimeError("RNG state is wrong size")
    form.unpack(state)
    return np.frombuffer(state, np.uint8)


def _bytes_of(state: Any) -> bytes:
    array = state if isinstance(state, np.ndarray) else getattr(state, "numpy", lambda: None)()
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a torch.ByteTensor, but got {type(state).__name__}")
    if array.dtype != np.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    if not array.flags.c_contiguous:
        raise RuntimeError("RNG state must be contiguous")
    return array.tobytes()


# ---- The default generators

_Place = Device | str | int | None


def default_generator(device: _Place = None) -> Generator:
    """The one that draws for the device when no other is given. Seeded at random, unless its like was seeded before."""
    global _recent  # noqa: PLW0603 -- mostly the same device is asked for, and to look one up takes long
    place = current.current_device() if device is None else device
    known, found = _recent
    if known is place and found is not None:
        return found
    place = current.resolve(place)
    found = _defaults.get(place)
    if found is None:
        made = Generator(place)
        with _lock:
            seed = _seeds.get(place.kind, _seeds.get(None))
            made._state = _random_seed() if seed is None else seed, 0  # noqa: SLF001 -- also while a graph is captured
            found = _defaults.setdefault(place, made)
    _recent = place, found
    return found


def manual_seed(seed: int, device: _Place = None) -> Generator:
    """Seed the device's default generator, or those of all devices there are and will be; gives the (current) device's.

    With a device, as `torch.cuda.manual_seed`; without, as `torch.manual_seed`. A float counts as its int, as there.
    """
    number = _long(int(seed), "manual_seed")
    if device is None:
        _seed_those(None, number)
        return default_generator()
    return default_generator(device).manual_seed(number)


def manual_seed_all(seed: int, kind: str | None = None) -> None:
    """Seed the default generators of all devices of a kind, the current one if none is given, open or not."""
    _seed_those(kind or current.current_device().kind, _long(int(seed), "manual_seed"))


def _seed_those(kind: str | None, number: int) -> None:
    with _lock:
        if kind is None:
            _seeds.clear()
        _seeds[kind] = number
        for device, generator in _defaults.items():
            if kind in (None, device.kind):
                generator.manual_seed(number)


def seed(device: _Place = None) -> int:
    """Seed the (current) device's default generator at random; gives the seed."""
    return default_generator(device).seed()


def seed_all(kind: str | None = None) -> int:
    """Seed the default generators of all devices of a kind with one random seed; gives it."""
    number = _random_seed()
    manual_seed_all(number, kind)
    return number


def initial_seed(device: _Place = None) -> int:
    """The seed of the (current) device's default generator."""
    return default_generator(device).initial_seed()


def get_rng_state(device: _Place = None) -> NDArray[np.uint8]:
    """The state of the (current) device's default generator, 16 bytes; of an MPS device 44."""
    return default_generator(device).get_state()


def set_rng_state(new_state: NDArray[np.uint8] | Tensor, device: _Place = None) -> None:
    """Let the (current) device's default generator go on from a state."""
    default_generator(device).set_state(new_state)


def get_rng_state_all(kind: str | None = None) -> list[NDArray[np.uint8]]:
    """The states of all devices of a kind, the current one if none is given; none is opened."""
    kind = kind or current.current_device().kind
    return [get_rng_state(Device(kind, index)) for index in range(device_count(kind))]


def set_rng_state_all(new_states: list[NDArray[np.uint8]], kind: str | None = None) -> None:
    """One state for each device of a kind, from the first on."""
    kind = kind or current.current_device().kind
    for index, state in enumerate(new_states):
        set_rng_state(state, Device(kind, index))


def forget_kind(kind: str) -> None:
    """As if no device of the kind had ever drawn: its emulation has ended."""
    global _recent  # noqa: PLW0603 -- see above
    with _lock:
        _seeds.pop(kind, None)
        for device in [device for device in _defaults if device.kind == kind]:
            del _defaults[device]
        _recent = None, None


def forget_in_child() -> None:
    """For the fork handler: another thread of the parent may have held the lock. The states stay, as copies."""
    global _lock  # noqa: PLW0603 -- see above
    _lock = threading.RLock()
