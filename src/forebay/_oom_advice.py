"""Adviser that adds to an OutOfMemory text the allocator setting that would have avoided the error.

`forebay._wiring` registers it: the adviser needs `snapshot.replay`, which `runtime.allocator` must not import.
"""

from __future__ import annotations

from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING

from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.spi import Growable

if TYPE_CHECKING:
    from forebay.records.model import Snapshot
    from forebay.runtime.allocator.request import AllocRequest
    from forebay.runtime.history.recorded_pool import RecordedPool

_thread = local()  # guards against recursion: the arrays made here may be allocated from the exhausted pool


def advise(snapshot: Snapshot, pool: RecordedPool, request: AllocRequest) -> list[str]:
    """Return lines for the error text; none if no setting is known to help. Never raises an exception."""
    if getattr(_thread, "advising", False) or request.pool_number != 0:  # a private pool's use is up to the program
        return []
    if pool.port.props.kind == "cpu":  # its segments have the size of its arrays: settings are no remedy
        return []
    _thread.advising = True
    try:
        from forebay.snapshot.replay.advice import suggest_settings

        free, total = pool.port.memory_info()
        return suggest_settings(
            replace(snapshot, notes=pool.snapshot_notes()),
            capacity=total,
            other_used=max(total - free - pool.current(RESERVED_BYTES), 0),
            limit=None if pool.port.props.heaps else pool.limit,  # for heaps the limit is a setting
            growable=isinstance(pool.port, Growable),
        )
    except Exception:  # noqa: BLE001 -- nothing may hide the OutOfMemory that is being reported
        return []
    finally:
        _thread.advising = False
