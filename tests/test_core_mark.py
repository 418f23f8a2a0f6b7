"""Marks that no queue made."""

from __future__ import annotations

from forebay import _core


def test_mark_of_no_queue_is_not_reached():
    mark = _core.Mark()
    assert (mark.tick, mark.nanoseconds) == (0, 0)
