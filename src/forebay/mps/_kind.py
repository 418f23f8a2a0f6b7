"""The MPS device kind, and argument checks of this package."""

from __future__ import annotations

from forebay import backends
from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind

__all__ = ["MPS", "as_boolean", "check_available", "get_open_device", "open_device", "require_backend"]

MPS = DeviceKind("mps", has_hooks=True)
# Module-level names: looking up a bound method on an imported object costs an allocation per call.
require_backend, get_open_device, open_device = MPS.require_backend, MPS.get_open_device, MPS.open_device


def as_boolean(value: object) -> bool:
    """Return the value. Raises RuntimeError, with PyTorch's text, unless it is a bool."""
    if not isinstance(value, bool):
        raise RuntimeError("couldn't convert python object to boolean")  # noqa: TRY004 -- PyTorch's type
    return value


def check_available() -> None:
    """Raise ForebayError without an MPS device, for functions that PyTorch has only in builds for MPS."""
    if not MPS.count():
        raise ForebayError(f"MPS is not available\n{backends.why_not(MPS.name)}")
