"""Random number generators: a seed and an offset into Philox's sequence. Each device has a default generator.

Generators work without opening their devices, so seeding also applies to devices opened later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay._base.device_spec import CPU, Device, DeviceLike, canonical
from forebay.errors import Forked
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import device_count
from forebay.runtime.random import philox_state
from forebay.runtime.random.generator_states import StateFormat, checked_offset, format_of
from forebay.runtime.random.launch_geometry import Geometry
from forebay.runtime.random.philox_state import PhiloxState

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "Generator",
    "RngState",
    "after_fork_in_child",
    "checked_state",
    "default_generator",
    "default_generator_on",
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "hooks",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "reset_kind",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

RngState: TypeAlias = "Tensor | NDArray[np.uint8]"

_DEFAULT_SEED = 67280421310721  # PyTorch's default seed
_UINT64_MAX = (1 << 64) - 1

_lock = (
    threading.RLock()
)  # guards the default generators and seeds; reentrant, as a destructor may run while it is held
_defaults: dict[Device, Generator] = {}
_recent: tuple[Device | None, Generator | None] = None, None  # the last result of `default_generator`
default_generators: dict[OpenDevice, Generator] = {}  # those that have drawn; others: `default_generator_on`
_seeds: dict[str | None, int] = {}  # the last seed for all devices of a kind; None: of all kinds


class _Hooks:
    """Function of the package of tensors, which imports this one: the bytes of a state as a tensor."""

    state_tensor: Callable[[bytes], Tensor]


hooks = _Hooks  # set by forebay._wiring


class Generator:
    """A random number generator: a position in the Philox sequence of a seed.

    A draw moves the offset as PyTorch's kernels do, so a state saved here or in PyTorch continues in the other. Any
    thread may draw; concurrent draws get different numbers.

    Parameters
    ----------
    device : device or str or int, optional
        The device whose kind the generator draws for; the CPU by default. It need not exist.
    geometry : Geometry or str or tuple of int, optional
        The GPU whose numbers are generated: a profile's name, the two numbers of a `Geometry`, or "reference" for the
        numbers of devices that are not GPUs. By default the device's own.

    Notes
    -----
    As `torch.Generator`.

    Examples
    --------
    >>> import forebay
    >>> generator = forebay.Generator("cpu").manual_seed(0)
    >>> forebay.rand(3, device="cpu", generator=generator).numpy()
    array([0.39904648, 0.51667917, 0.02493039], dtype=float32)
    """

    _packed: tuple[tuple[int, int], bytes] = (0, 0), b""  # the last position packed

    def __init__(
        self, device: DeviceLike | None = None, *, geometry: Geometry | str | tuple[int, int] | None = None
    ) -> None:
        self._device = CPU if device is None else canonical(current.device_argument(device))
        if capture_state.active and self._active_capture() is not None:
            name = self.device.kind.upper()
            raise RuntimeError(
                f"Cannot construct a new {name}GeneratorImpl during {name} graph capture. {self._capture_advice()}"
            )
        self.philox: PhiloxState = PhiloxState(_DEFAULT_SEED)  # internal to the runtime, like `own_geometry`
        self.geometry = geometry

    @property
    def device(self) -> Device:
        """The device whose kind the generator draws for."""
        return self._device

    @property
    def _format(self) -> StateFormat:
        return format_of(self.device.kind)

    @property
    def geometry(self) -> Geometry | None:
        """The GPU whose numbers are generated; None for the device's own."""
        return self.own_geometry

    @geometry.setter
    def geometry(self, geometry: Geometry | str | tuple[int, int] | None) -> None:
        self.own_geometry: Geometry | None = None if geometry is None else Geometry.of(geometry)

    def __repr__(self) -> str:
        seed, offset = self.philox.position
        return f"<forebay.Generator device={self.device} seed={seed} offset={offset}>"

    def manual_seed(self, seed: int) -> Self:
        """Set the seed and reset the offset to 0.

        Parameters
        ----------
        seed : int
            From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64.

        Returns
        -------
        Generator
            This generator.

        Raises
        ------
        RuntimeError
            If `seed` is not an int, or differs from the current seed while a graph is captured.
        ValueError
            If `seed` is out of range.

        Notes
        -----
        As `torch.Generator.manual_seed`.
        """
        number = _long(seed, "manual_seed")
        if capture_state.active and self._active_capture() is not None:
            self._check_seed(number)
            return self
        self.philox.set(number, 0)
        return self

    # Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.

    def initial_seed(self) -> int:
        """Return the current seed.

        As `torch.Generator.initial_seed`.

        Returns
        -------
        int
            From 0 to 2**64 - 1.
        """
        return self.philox.position[0]

    def seed(self) -> int:
        """Set a random seed and reset the offset to 0.

        As `torch.Generator.seed`.

        Returns
        -------
        int
            The new seed, of 53 bits.

        Raises
        ------
        RuntimeError
            While a graph is captured.
        """
        self._check_not_captured("seed")
        number = _random_seed()
        self.manual_seed(number)
        return number

    def get_offset(self) -> int:
        """Return the offset.

        As `torch.Generator.get_offset`.

        Returns
        -------
        int
            The 32-bit words that each thread of the GPU has drawn; a multiple of 4.

        Raises
        ------
        RuntimeError
            While a graph is captured.
        """
        self._check_not_captured("get_offset")
        return self.philox.position[1]

    def set_offset(self, offset: int) -> Self:
        """Set the offset.

        As `torch.Generator.set_offset`.

        Parameters
        ----------
        offset : int
            In 32-bit words of each thread; a multiple of 4.

        Returns
        -------
        Generator
            This generator.

        Raises
        ------
        RuntimeError
            If `offset` is not a multiple of 4, or while a graph is captured.
        """
        self._check_not_captured("set_offset")
        number = checked_offset(_long(offset, "manual_offset"))
        self.philox.set_offset(number)
        return self

    def get_state(self) -> Tensor:
        """Return the seed and offset in PyTorch's byte format.

        As `torch.Generator.get_state`. While a graph is captured, the offset counts from the start of each replay.

        Returns
        -------
        Tensor
            A uint8 tensor on the CPU, of 16 bytes, or 44 for kind "mps".
        """
        return hooks.state_tensor(self.state_bytes())

    def clone_state(self) -> Generator:
        """Return a new generator with the same state and geometry.

        As `torch.Generator.clone_state`.

        Returns
        -------
        Generator
            A generator that draws the numbers this one would draw next.

        Raises
        ------
        RuntimeError
            While a graph is captured.
        """
        self._check_not_captured("clone_impl")
        return _from_state(self.device, PhiloxState(*self.philox.position), self.own_geometry)

    def graphsafe_get_state(self) -> Generator:
        """Return a generator that shares this one's state: a draw from either advances both.

        As `torch.Generator.graphsafe_get_state`. Allowed while a graph is captured.

        Returns
        -------
        Generator
            A new generator of the same device and geometry.
        """
        return _from_state(self.device, self.philox, self.own_geometry)

    def advance(self, words: int) -> tuple[int, int]:
        """Return the seed and offset for a kernel, and advance the offset. Internal to the runtime.

        Parameters
        ----------
        words : int
            The 32-bit words that each thread draws; rounded up to a multiple of 4.

        Returns
        -------
        tuple of int
            Seed and offset.
        """
        return self.philox.advance(words)

    # End of the written lines.

    def state_bytes(self) -> bytes:
        """Return the bytes of `get_state`. Internal to the runtime: needs no open device.

        Returns
        -------
        bytes
            The seed and offset.
        """
        if capture_state.active and (capture := self._active_capture()) is not None:
            return self._format.pack(self.philox.position[0], capture.draw(self.philox, 0)[1])
        packed = self._packed
        state = self.philox.position
        if packed[0] is not state:
            packed = self._packed = state, self._format.pack(*state)
        return packed[1]

    def set_state(self, new_state: RngState) -> Self:
        """Set the seed and offset from a state.

        Parameters
        ----------
        new_state : Tensor or numpy.ndarray
            The bytes that `get_state` returned, here or in PyTorch. A state of 8 bytes is a seed with offset 0.

        Returns
        -------
        Generator
            This generator.

        Raises
        ------
        TypeError
            If `new_state` is not a uint8 array or tensor.
        RuntimeError
            If the size or offset is invalid, or if the seed differs from the current seed while a graph is captured.

        Notes
        -----
        As `torch.Generator.set_state`.
        """
        seed, offset = self._format.unpack(checked_state(new_state, self.device.kind).tobytes())
        if capture_state.active and (capture := self._active_capture()) is not None:
            self._check_seed(seed)
            capture.draw(self.philox, 0)
            capture.drawn[self.philox] = offset
            return self
        self.philox.set(seed, offset)
        return self

    def graphsafe_set_state(self, state: Generator) -> Self:
        """Share another generator's state from now on.

        Parameters
        ----------
        state : Generator
            A generator for devices of the same kind.

        Returns
        -------
        Generator
            This generator.

        Raises
        ------
        TypeError
            If `state` is not a Generator.
        RuntimeError
            If `state` is for devices of another kind.

        Notes
        -----
        As `torch.Generator.graphsafe_set_state`. Allowed while a graph is captured: the graph then draws from both
        states, and a replay advances both.

        Examples
        --------
        >>> import forebay
        >>> one, other = forebay.Generator("cpu"), forebay.Generator("cpu").manual_seed(1)
        >>> _ = one.graphsafe_set_state(other)
        >>> _ = other.manual_seed(2)
        >>> one.initial_seed()
        2
        """
        if not isinstance(state, Generator):
            raise TypeError(f"expected a Generator, but got {type(state).__name__}")
        if state.device.kind != self.device.kind:
            raise RuntimeError(f"Expected a {self.device.kind.upper()} Generator")
        self.philox = state.philox
        return self

    def _active_capture(self) -> capture_state.Capture | None:
        """Return the capture of one of this thread's current streams on devices of the kind, or None."""
        streams = tuple(current.thread_state().streams.items())
        captures = (stream.capture for opened, stream in streams if opened.device.kind == self.device.kind)
        return next((capture for capture in captures if capture is not None), None)

    def _check_not_captured(self, function: str) -> None:
        if capture_state.active and self._active_capture() is not None:
            name = self.device.kind.upper()
            raise RuntimeError(
                f"Cannot call {name}GeneratorImpl::{function} during {name} graph capture. {self._capture_advice()}"
            )

    def _capture_advice(self) -> str:
        status = f"{self.device.kind}StreamCaptureStatus"
        return f"If you need this call to be captured, please file an issue. Current {status}: {status}Active"

    def _check_seed(self, seed: int) -> None:
        if seed != self.philox.position[0]:
            name = self.device.kind.upper()
            raise RuntimeError(
                f"{name}GeneratorImpl::set_current_seed can be called during stream capture only if new seed is the "
                "same as the original seed."
            )


def _from_state(device: Device, state: PhiloxState, geometry: Geometry | None = None) -> Generator:
    """Return a generator that draws from the state, also while a graph is captured."""
    made = Generator.__new__(Generator)
    made._device, made.philox, made.own_geometry = device, state, geometry  # noqa: SLF001 -- a second constructor
    return made


def _long(number: Any, function: str) -> int:
    if isinstance(number, (bool, np.bool_)) or not isinstance(number, (int, np.integer)):
        raise RuntimeError(f"{function} expected a long, but got {type(number).__name__}")  # noqa: TRY004 -- PyTorch's
    if not -1 << 63 <= number <= _UINT64_MAX:
        raise ValueError("Overflow when unpacking long long")
    return int(number) & _UINT64_MAX


def _random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits, exact in a float


def checked_state(new_state: Any, kind: str) -> NDArray[np.uint8]:
    """Return a copy of a state of the kind's generators. Raises TypeError or RuntimeError if it is invalid."""
    state, state_format = _state_bytes(new_state), format_of(kind)
    if len(state) not in state_format.sizes:
        raise RuntimeError("RNG state is wrong size")
    state_format.unpack(state)
    return np.frombuffer(state, np.uint8)


def _state_bytes(state: Any) -> bytes:
    array: Any
    try:
        if isinstance(state, np.ndarray):
            array = state
        elif capture_state.active and _is_captured_on_host(state):
            array = state.raw_array()  # the capture forbids waiting
        else:
            array = getattr(state, "numpy", lambda: None)()
    except Forked:  # a state that was read before the fork
        array = state.raw_array()
    except TypeError:  # a tensor of a device whose memory the host cannot read
        raise TypeError("RNG state must be a torch.ByteTensor") from None
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected a torch.ByteTensor, but got {type(state).__name__}")
    if array.dtype != np.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    if not array.flags.c_contiguous:
        raise RuntimeError("RNG state must be contiguous")
    return array.tobytes()


def _is_captured_on_host(state: Any) -> bool:
    if not hasattr(state, "raw_array") or not state.raw_storage.host_visible:
        return False
    return capture_state.is_under_way(state.device.kind)


# ---- The default generators


def default_generator(device: DeviceLike | None = None) -> Generator:
    """Return the generator that a device uses when no generator is given.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the CPU by default, as of PyTorch's functions without a module.

    Returns
    -------
    Generator
        Seeded by the last `manual_seed` or `manual_seed_all` that covers the device, else at random.

    Notes
    -----
    Does not open the device.

    Examples
    --------
    >>> import forebay
    >>> forebay.random.default_generator("cpu") is forebay.random.default_generator("cpu:0")
    True
    """
    global _recent  # noqa: PLW0603 -- caches the last result: most calls are for the same device
    place = CPU if device is None else device
    known, found = _recent
    if known is place and found is not None:
        return found
    place = current.resolve(place)
    found = _defaults.get(place)
    if found is None:
        with _lock:
            seed = _seeds.get(place.kind, _seeds.get(None))
            state = PhiloxState(_random_seed() if seed is None else seed)
            made = _from_state(place, state)
            found = _defaults.setdefault(place, made)
    _recent = place, found
    return found


def default_generator_on(opened: OpenDevice) -> Generator:
    """Return the default generator of a device, and list it in `default_generators` while the device is usable."""
    found = default_generator(opened.device)
    with _lock:
        if not opened.unusable:  # else its kind has been reset already
            default_generators[opened] = found
    return found


def manual_seed(seed: int, device: DeviceLike | None = None) -> Generator:
    """Seed a device's default generator, or those of all devices, including devices opened later.

    Parameters
    ----------
    seed : int
        From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64. A float is truncated.
    device : device or str or int, optional
        The device; all devices by default.

    Returns
    -------
    Generator
        The default generator of the device, or of the CPU.

    Raises
    ------
    ValueError
        If `seed` is out of range.

    Notes
    -----
    With a device, as `torch.cuda.manual_seed`; without, as `torch.manual_seed`. Does not open a device.

    Examples
    --------
    >>> import forebay
    >>> forebay.manual_seed(7).initial_seed()
    7
    """
    number = _long(int(seed), "manual_seed")
    if device is None:
        _seed_defaults(None, number)
        return default_generator()
    return default_generator(device).manual_seed(number)


# Written by tools/write_names.py from tools/names/random.toml: edit the table, not these lines.


def manual_seed_all(seed: int, kind: str | None = None) -> None:
    """Seed the default generators of all devices of a kind, including devices opened later.

    As `torch.cuda.manual_seed_all`. Does not open a device.

    Parameters
    ----------
    seed : int
        From -2**63 to 2**64 - 1; negative seeds are taken modulo 2**64. A float is truncated.
    kind : str, optional
        The device kind; the current one by default.

    Raises
    ------
    ValueError
        If `seed` is out of range.
    """
    _seed_defaults(kind or current.current_device().kind, _long(int(seed), "manual_seed"))


def seed_all(kind: str | None = None) -> int:
    """Seed the default generators of all devices of a kind with one random seed.

    As `torch.cuda.seed_all`. Does not open a device.

    Parameters
    ----------
    kind : str, optional
        The device kind; the current one by default.

    Returns
    -------
    int
        The new seed.
    """
    number = _random_seed()
    manual_seed_all(number, kind)
    return number


def initial_seed(device: DeviceLike | None = None) -> int:
    """Return the seed of a device's default generator.

    As `torch.initial_seed`; with a device, as `torch.cuda.initial_seed`. Does not open the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the CPU by default, as of PyTorch's functions without a module.

    Returns
    -------
    int
        From 0 to 2**64 - 1.
    """
    return default_generator(device).initial_seed()


def get_rng_state(device: DeviceLike | None = None) -> Tensor:
    """Return the state of a device's default generator.

    As `torch.get_rng_state`; with a device, as `torch.cuda.get_rng_state`. Does not open the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the CPU by default, as of PyTorch's functions without a module.

    Returns
    -------
    Tensor
        A uint8 tensor on the CPU, of 16 bytes, or 44 for kind "mps".

    Examples
    --------
    >>> import forebay
    >>> len(forebay.random.get_rng_state("cpu"))
    16
    """
    return default_generator(device).get_state()


def set_rng_state(new_state: RngState, device: DeviceLike | None = None) -> None:
    """Set the state of a device's default generator.

    As `torch.set_rng_state`; with a device, as `torch.cuda.set_rng_state`. Does not open the device.

    Parameters
    ----------
    new_state : Tensor or numpy.ndarray
        The bytes that `get_rng_state` returned, here or in PyTorch.
    device : device or str or int, optional
        The device; the CPU by default, as of PyTorch's functions without a module.

    Raises
    ------
    TypeError
        If `new_state` is not a uint8 array or tensor.
    RuntimeError
        If the size or offset is invalid.
    """
    default_generator(device).set_state(new_state)


def get_rng_state_all(kind: str | None = None) -> list[Tensor]:
    """Return the states of the default generators of all devices of a kind.

    As `torch.cuda.get_rng_state_all`. Does not open a device.

    Parameters
    ----------
    kind : str, optional
        The device kind; the current one by default.

    Returns
    -------
    list of Tensor
        One state per device, ordered by index.
    """
    kind = kind or current.current_device().kind
    return [get_rng_state(Device(kind, index)) for index in range(device_count(kind))]


def set_rng_state_all(new_states: Iterable[RngState], kind: str | None = None) -> None:
    """Set the states of the default generators of a kind's devices.

    As `torch.cuda.set_rng_state_all`. Does not open a device.

    Parameters
    ----------
    new_states : iterable of Tensor or numpy.ndarray
        One state per device, from index 0.
    kind : str, optional
        The device kind; the current one by default.

    Raises
    ------
    TypeError
        If a state is not a uint8 array or tensor.
    RuntimeError
        If the size or offset of a state is invalid.
    """
    kind = kind or current.current_device().kind
    for index, state in enumerate(new_states):
        set_rng_state(state, Device(kind, index))


# End of the written lines.


def _seed_defaults(kind: str | None, number: int) -> None:
    with _lock:
        if kind is None:
            _seeds.clear()
        _seeds[kind] = number
        for device, generator in _defaults.items():
            if kind in (None, device.kind):
                generator.manual_seed(number)


def seed(device: DeviceLike | None = None) -> int:
    """Seed a device's default generator at random, or those of all devices with one seed.

    Parameters
    ----------
    device : device or str or int, optional
        The device; all devices by default, including devices opened later.

    Returns
    -------
    int
        The new seed.

    Notes
    -----
    As `torch.seed`; with a device, as `torch.cuda.seed`. Does not open a device.
    """
    if device is not None:
        return default_generator(device).seed()
    number = _random_seed()
    _seed_defaults(None, number)
    return number


def reset_kind(kind: str) -> None:
    """Discard the kind's default generators and seeds after its emulation has ended."""
    global _recent  # noqa: PLW0603 -- as above
    with _lock:
        _seeds.pop(kind, None)
        for device in [device for device in _defaults if device.kind == kind]:
            del _defaults[device]
        for opened in [opened for opened in default_generators if opened.device.kind == kind]:
            del default_generators[opened]
        _recent = None, None


def after_fork_in_child() -> None:
    """Replace the lock in a forked child. The generators keep their states."""
    global _lock  # noqa: PLW0603 -- another thread of the parent may have held the old lock
    _lock = threading.RLock()
    philox_state.after_fork_in_child()
