"""Telemetry, traces, ranges and race detection. Only `trace` and `Trace` are exported; import other parts by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.observe.tracing.session import Trace, trace

__all__ = ["Trace", "trace"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imported late: the other parts do not need tracing
        from forebay.observe.tracing import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
