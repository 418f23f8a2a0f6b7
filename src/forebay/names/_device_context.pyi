"""Device arguments and the context manager of the names, compiled because programs use them in each call."""

from types import TracebackType
from typing import Any, ClassVar, Literal

from typing_extensions import disjoint_base

from forebay.runtime.base.lazy_init import LazyInit
from forebay.runtime.devices.open_device import OpenDevice

@disjoint_base
class DeviceArguments:
    """The devices of one kind that arguments denote, where that can be told at once: no function of Python is called.

    `opened` has the kind's open devices by index and by name.
    """

    def __init__(self, kind: str, opened: dict[int | str, OpenDevice], initialisation: LazyInit) -> None: ...

    # Return the device of an argument if it is open and usable. None: the general path must decide. The argument None,
    # as a name without an index, is the current device.
    def known(self, device: Any) -> OpenDevice | None: ...

    # As `known`, for functions that need an index: of a name without one, the general path must decide.
    def known_by_index(self, device: Any) -> OpenDevice | None: ...

    # Make the device of an argument with an index the thread's current one. False: nothing was done, as the device does
    # not exist or the current device is of another kind, and the general path must decide.
    def select(self, device: Any) -> bool: ...

    # Return the index that an argument names; if it is optional, that of the current device for None and for a name
    # without an index, once the kind is initialised. None: the general path must decide.
    def spelled_index(self, device: Any, optional: bool = False) -> int | None: ...

@disjoint_base
class DeviceContext:
    """Context manager that makes a device current and restores the previous device on exit.

    Parameters
    ----------
    device : device or str or int or None
        The device. None and a negative index change nothing.

    Raises
    ------
    ValueError
        If `device` is of another kind.
    DeviceError
        On entry, if the device does not exist.

    Notes
    -----
    Entering initialises the kind but does not open a device.
    """

    kind: ClassVar[DeviceArguments]  # set by subclasses
    idx: int | None
    prev_idx: int | None
    def __init__(self, device: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        type: type[BaseException] | None,  # noqa: A002 -- PyTorch's name
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]: ...
