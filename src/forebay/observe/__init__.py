"""Looking at devices and programs without disturbing them. But for `trace`, each part is imported by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.observe.tracing.session import Trace, trace

__all__ = ["Trace", "trace"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # the other parts do not need what these do
        from forebay.observe.tracing import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
