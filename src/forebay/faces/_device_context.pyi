"""The context manager of the faces that makes a device current, compiled because programs enter it often."""

from types import TracebackType
from typing import Any, ClassVar, Literal

from typing_extensions import disjoint_base

from forebay.faces.kind import DeviceKind

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

    kind: ClassVar[DeviceKind]  # set by subclasses
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
