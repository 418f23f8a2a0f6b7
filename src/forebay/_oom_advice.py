"""Adds to the text of an OutOfMemory the setting that would have helped. Imported, it is there: the ladder is below the
replay that it needs, and cannot ask for it by itself.
"""

from __future__ import annotations

from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING

from forebay.runtime.allocator.oom_message import ADVISERS
from forebay.runtime.allocator.statistics import RESERVED_BYTES
from forebay.snapshot.model import Snapshot
from forebay.spi import Growable

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.expandable_segments import Request

_busy = local()  # the arrays made here may run out of memory as well, where NumPy's are lent


def advise(snapshot: Snapshot, allocator: Allocator, request: Request) -> list[str]:
    """Lines for the text; none where nothing is shown to help, and never an error."""
    if getattr(_busy, "now", False) or request.home != 0:  # where it went, only the program knows
        return []
    _busy.now = True
    try:
        from forebay.snapshot.replay.advice import lines

        free, total = allocator.port.memory_info()
        return lines(
            replace(snapshot, notes=allocator.rules()),
            capacity=total,
            other_used=max(total - free - allocator.current(RESERVED_BYTES), 0),
            limit=None if allocator.port.props.heaps else allocator.limit,  # of heaps it is a setting
            growable=isinstance(allocator.port, Growable),
        )
    except Exception:  # noqa: BLE001 -- nothing may hide the error that is being told
        return []
    finally:
        _busy.now = False


ADVISERS.append(advise)
