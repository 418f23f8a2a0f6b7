"""The kind that this face is of."""

from __future__ import annotations

from forebay import backends
from forebay.errors import ForebayError
from forebay.faces.kind import Kind

__all__ = ["MPS", "as_boolean", "check_there", "check_there_for", "device_if_open", "open_device"]

MPS = Kind("mps", hooks=True)
check_there_for = MPS.hook
# Names of their own: what was imported gives its methods slowly, each call makes an object for one.
device_if_open, open_device = MPS.opened_if, MPS.opened


def as_boolean(value: object) -> bool:
    """RuntimeError for all but True and False, in PyTorch's words."""
    if not isinstance(value, bool):
        raise RuntimeError("couldn't convert python object to boolean")  # noqa: TRY004 -- PyTorch's type
    return value


def check_there() -> None:
    """The same for what is in PyTorch only where it was built for MPS."""
    if not MPS.count():
        raise ForebayError(f"MPS is not available\n{backends.why_not(MPS.name)}")
