"""The explorer of the report page: its data, and the element that the script of `report-page/` fills."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.untrusted import printable, shortened
from forebay.records.model import Action, State
from forebay.snapshot.formats.known_notes import sampling_mean
from forebay.snapshot.report.page.bands import add_bands
from forebay.snapshot.report.page.columns import Columns
from forebay.snapshot.report.page.view import View

__all__ = ["data", "section"]

_LARGEST_NUMBER = 1 << 32  # larger ids of streams are addresses or flags
_MAX_NAME = 300  # characters of a file or function name
_CHANGES = {Action.RESERVE: 1, Action.MAP: 1, Action.RELEASE: -1, Action.UNMAP: -1}


def section(view: View) -> str:
    """Return the element that the script fills."""
    if not view.recorded and not len(view.snapshot.segments):
        return f'<section class="card"><h2>Memory over time</h2><p class="empty">{view.empty_reason}</p></section>\n'
    needs = '<noscript><p class="remark">The chart and the tables need JavaScript.</p></noscript>'
    reason = "" if view.recorded else f'<p class="remark">{view.empty_reason}</p>'
    return f'{reason}<div class="explorer">{needs}</div>\n'


def data(view: View) -> dict[str, Any]:
    """Return the columns and the names that the script draws."""
    snapshot, timeline = view.snapshot, view.timeline
    columns = Columns()
    columns.add("time", timeline.time_ns - timeline.time_ns[0])
    changes = np.flatnonzero(np.isin(snapshot.trace["action"], list(_CHANGES)))
    columns_of_queues = timeline.allocations.queue, snapshot.segments["queue"], snapshot.trace["queue"][changes]
    queues = _distinct(np.concatenate(columns_of_queues))
    _add_allocations(view, columns, queues)
    _add_segments(view, columns, queues)
    _add_changes(view, columns, queues, changes)
    own = view.stacks
    for name in ("parent", "frame"):
        columns.add(f"stack.{name}", own.stacks[name])
    for name in ("file", "name", "line"):
        columns.add(f"frame.{name}", snapshot.frames[name])
    columns.add("stack.site", _sites_of_stacks(view))
    ooms = np.flatnonzero(snapshot.trace["action"] == Action.OOM)
    columns.add("oom.moment", ooms + 1)
    for name, field in (("wanted", "nbytes"), ("free", "address")):
        columns.add(f"oom.{name}", snapshot.trace[field][ooms])
    columns.add("oom.stack", own.of_stack[snapshot.trace["stack"][ooms]])
    spans, ranges = add_bands(view, columns)
    layout, packed = columns.encoded()
    return {
        "name": printable(shortened(view.name, _MAX_NAME)),
        "capacity": snapshot.capacity,
        "lost": snapshot.lost,
        "sampled": sampling_mean(snapshot.notes) > 0,
        "largest_free": view.numbers.largest_free,
        "streams": [str(queue) if queue < _LARGEST_NUMBER else hex(queue) for queue in queues.tolist()],
        "strings": [printable(shortened(text, _MAX_NAME)) for text in snapshot.strings],
        "sites": [view.short(label) for label in view.sites.labels],
        "spans": spans,
        "ranges": ranges,
        "layout": layout,
        "packed": packed,
    }


def _distinct(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values once each, in order. The first call of `numpy.unique` would import `numpy.ma`, for 20 ms."""
    ordered = np.sort(values)
    first: NDArray[np.uint64] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return first


def _sites_of_stacks(view: View) -> NDArray[np.int64]:
    """Return the site of each of the program's stacks, and of allocations from before the history."""
    sites = np.full(len(view.stacks.stacks) + 1, 1)
    sites[view.stacks.of_stack] = view.sites.of_stack  # stacks that are equal have the same site
    sites[0] = view.sites.of_stack[0]
    return sites


def _add_allocations(view: View, columns: Columns, queues: NDArray[np.uint64]) -> None:
    held = view.timeline.allocations
    order = np.argsort(held.start, kind="stable")
    columns.add("start", held.start[order])
    columns.add("lifetime", (held.end - held.start)[order])
    for name in ("nbytes", "address"):
        columns.add_repetitive(name, getattr(held, name)[order])
    columns.add_repetitive("stack", view.stacks.of_stack[held.stack[order]])
    columns.add("queue", np.searchsorted(queues, held.queue[order]))
    columns.add("pool", held.pool[order])


def _add_segments(view: View, columns: Columns, queues: NDArray[np.uint64]) -> None:
    """Add the segments at the end, and the blocks at the end that wait to be freed."""
    snapshot = view.snapshot
    for name in ("address", "nbytes", "pool", "growing"):
        columns.add(f"segment.{name}", snapshot.segments[name])
    columns.add("segment.queue", np.searchsorted(queues, snapshot.segments["queue"]))
    pending = snapshot.blocks[snapshot.blocks["state"] == State.PENDING_FREE]
    for name in ("address", "nbytes"):
        columns.add(f"pending.{name}", pending[name])


def _add_changes(view: View, columns: Columns, queues: NDArray[np.uint64], rows: NDArray[np.intp]) -> None:
    entries = view.snapshot.trace[rows]
    columns.add("change.moment", rows + 1)
    columns.add("change.sign", [_CHANGES[action] for action in entries["action"].tolist()])
    columns.add("change.growing", np.isin(entries["action"], [Action.MAP, Action.UNMAP]))
    for name in ("address", "nbytes", "pool"):
        columns.add(f"change.{name}", entries[name])
    columns.add("change.queue", np.searchsorted(queues, entries["queue"]))
