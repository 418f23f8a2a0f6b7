"""The kind that this face is of."""

from __future__ import annotations

from penstock import backends
from penstock.errors import PenstockError
from penstock.faces.kind import Kind

__all__ = ["MPS", "check_there", "check_there_for"]

MPS = Kind("mps")
_started = MPS.initialisation


def check_there_for(call: str) -> None:
    """PenstockError where there is no MPS device: PyTorch's words for that function of its backend, and the reason."""
    if not _started.done and not MPS.count():
        raise _nothing(f"Cannot execute {call}() without MPS backend.")


def check_there() -> None:
    """The same for what is in PyTorch only where it was built for MPS."""
    if not MPS.count():
        raise _nothing("MPS is not available")


def _nothing(words: str) -> PenstockError:
    return PenstockError(f"{words}\n{backends.driver(MPS.name).why_not()}")
