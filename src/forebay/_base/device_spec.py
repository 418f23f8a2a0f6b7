"""The device class: a kind and an optional index, and the default device of each thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final, NoReturn, Self, SupportsInt, TypeAlias

import numpy as np

__all__ = [
    "CPU",
    "NO_ACCELERATOR",
    "Device",
    "DeviceLike",
    "canonical",
    "chosen_device",
    "default_device",
    "hooks",
    "is_pytorch_device",
    "set_default",
]

_SPELLING = re.compile(r"([a-zA-Z_]+)(?::(0|[1-9][0-9]*))?")
_TORCH_KINDS = (
    "cpu, cuda, ipu, xpu, mkldnn, opengl, opencl, ideep, hip, ve, fpga, maia, xla, lazy, vulkan, mps, meta, hpu, mtia, "
    "privateuseone"
)
_INTEGERS = (int, np.integer)
_KNOWN = frozenset(_TORCH_KINDS.split(", "))
NO_ACCELERATOR = "Cannot access accelerator device when none is available."


def is_pytorch_device(device: object) -> bool:
    """Return True for a `torch.device`. Does not import PyTorch."""
    kind = device.__class__
    return kind.__name__ == "device" and kind.__module__ == "torch"


class Device:
    """A device name: a kind and an optional index.

    Construction does not open the device, which need not exist. As a context manager it sets the default
    device of tensor factories in the calling thread.

    As `torch.device`, with its messages. Kinds of installed backends are accepted besides PyTorch's. Unlike PyTorch,
    an index above 127 does not wrap around.

    Parameters
    ----------
    type : str or device or int
        A kind (`"cuda"`), a kind with an index (`"cuda:1"`), another device, PyTorch's devices included, or an index
        of the current accelerator.
    index : int, optional
        The index, if `type` is a kind alone. Without one, `"cuda"` is the current CUDA device of the calling thread
        and `"cpu"` is the first CPU device.
    device : device or str or int, optional
        Another spelling of `type` alone.

    Raises
    ------
    RuntimeError
        If the string or the index is malformed, or if an index is given and there is no accelerator.
    TypeError
        If an argument has another type.

    Examples
    --------
    >>> import forebay
    >>> forebay.device("cuda:1")
    device(type='cuda', index=1)
    >>> forebay.device("cuda", 1) == forebay.device("cuda:1")
    True
    """

    __slots__ = ("index", "kind")
    kind: Final[str]  # type: ignore[misc]  # assigned through object.__setattr__
    index: Final[int | None]  # type: ignore[misc]  # as above

    def __init__(
        self,
        type: str | Device | int | None = None,  # noqa: A002 - PyTorch's name
        index: int | None = None,
        *,
        device: Device | str | int | None = None,
    ) -> None:
        spec: Any = device if type is None and device is not None else type
        if spec.__class__ is bytes:
            spec = spec.decode()
        if spec.__class__ is str:
            kind, found = _parsed(spec)
            if index is not None:
                if index.__class__ is bool or not isinstance(index, _INTEGERS):
                    raise TypeError(f"device(): argument 'index' (position 2) must be int, not {_type_name(index)}")
                if found is not None:
                    raise RuntimeError(
                        f"type (string) must not include an index because index was passed explicitly: {spec}"
                    )
                found = _checked(index)
        elif isinstance(spec, Device):
            if index is not None:
                _reject_type(spec)
            kind, found = spec.kind, spec.index
        elif isinstance(spec, _INTEGERS) and spec.__class__ is not bool and index is None:
            found = _checked(spec)
            accelerator = hooks.accelerator()
            if accelerator is None:
                raise RuntimeError(NO_ACCELERATOR)
            kind = accelerator
        elif index is not None:
            _reject_type(spec)
        elif is_pytorch_device(spec):
            kind, found = spec.type, spec.index
        else:
            _reject(spec)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", found)

    @property
    def type(self) -> str:
        """The kind, such as `"cuda"` or `"cpu"`."""
        return self.kind

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"attribute {name!r} of 'forebay.device' objects is not writable")

    def __eq__(self, other: object) -> bool:
        if other.__class__ is Device or is_pytorch_device(other):
            device: Any = other
            return bool(self.kind == device.type and self.index == device.index)
        return False

    def __hash__(self) -> int:
        return hash((self.kind, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.kind,) if self.index is None else (self.kind, self.index)

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Device:
        return self

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return (
            f"device(type={self.kind!r})" if self.index is None else f"device(type={self.kind!r}, index={self.index})"
        )

    def _repr_html_(self) -> str:
        from forebay._base.html_repr import box, facts

        try:
            described = hooks.describe(self)
        except Exception as error:  # noqa: BLE001 - of a backend; a name is displayed in any case
            described = [("state", f"{type(error).__name__}: {error}")]
        return box(repr(self), facts(described))

    def __enter__(self) -> Self:
        _thread.entered.append(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not _thread.entered:
            raise RuntimeError(f"{self!r} was not entered by this thread")
        _thread.entered.pop()


Device.__module__, Device.__name__, Device.__qualname__ = "forebay", "device", "device"  # its public name


class _Hooks:
    """Functions of the packages above: kinds of installed backends, the kind of the current accelerator, facts."""

    installed: Callable[[], Collection[str]] = staticmethod(tuple)
    accelerator: Callable[[], str | None] = staticmethod(lambda: None)
    describe: Callable[[Device], list[tuple[str, str]]] = staticmethod(lambda _: [])


hooks = _Hooks  # set by forebay._wiring


class _Thread(threading.local):
    """Default devices of one thread: the one that was set, and those of entered `with device:` blocks."""

    def __init__(self) -> None:
        self.base: Device | None = None
        self.entered: list[Device] = []


_thread = _Thread()


def canonical(device: Device) -> Device:
    """Return the one spelling of a device that the runtime uses: the first CPU device has no index."""
    return CPU if device.index == 0 and device.kind == "cpu" else device


def default_device() -> Device:
    """Return the device on which factories of this thread create tensors, as it was spelled."""
    entered = _thread.entered
    return entered[-1] if entered else _thread.base or CPU


def chosen_device() -> Device | None:
    """Return the default device of this thread if one is set, as it was spelled."""
    entered = _thread.entered
    return entered[-1] if entered else _thread.base


def set_default(device: Device | None) -> None:
    """Set the default device of this thread; None restores the CPU."""
    _thread.base = device


@cache
def _parsed(text: str) -> tuple[str, int | None]:
    if not text:
        raise RuntimeError("Device string must not be empty")
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise RuntimeError(f"Invalid device string: '{text}'")
    kind, index = match[1], match[2]
    if kind not in _KNOWN and kind not in hooks.installed():
        raise RuntimeError(f"Expected one of {_TORCH_KINDS} device type at start of device string: {kind}")
    if index is not None and len(index) > len(str(1 << 31)):
        raise RuntimeError(f"Could not parse device index '{index}' in device string '{text}'")
    return kind, None if index is None else int(index)


def _checked(index: SupportsInt) -> int:
    number = int(index)
    if number < 0:
        raise RuntimeError("Device index must not be negative")
    return number


def _reject_type(spec: object) -> NoReturn:
    raise TypeError(f"device(): argument 'type' (position 1) must be str, not {_type_name(spec)}")


def _reject(spec: object) -> NoReturn:
    raise TypeError(
        f"device() received an invalid combination of arguments - got ({_type_name(spec)}), but expected one of:\n"
        " * (forebay.device device)\n      didn't match because some of the arguments have invalid types: "
        f"(!{_type_with_elements(spec)}!)\n * (str type, int index = -1)\n"
    )


def _type_name(value: object) -> str:
    kind = value.__class__
    if isinstance(value, Device):
        return "forebay.device"
    return f"numpy.{kind.__name__}" if kind.__module__ == "numpy" and kind is not np.ndarray else kind.__name__


def _type_with_elements(value: object) -> str:
    """Return the type of a value as PyTorch's messages spell it, such as "tuple of (int,)"."""
    if not isinstance(value, (list, tuple)):
        return _type_name(value)
    names = ", ".join(map(_type_name, value))
    if isinstance(value, list):
        return f"list of [{names}]"
    return f"tuple of ({names}{',' if len(value) == 1 else ''})"


DeviceLike: TypeAlias = Device | str | int  # what an argument `device` accepts
CPU: Final = Device("cpu")
