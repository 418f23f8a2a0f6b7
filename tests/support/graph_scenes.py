"""What the tests of graphs are made of."""

from __future__ import annotations

import pytest

import forebay
from forebay.errors import DeviceError


def captured(graph, work, **options):
    """What the work gives, which is captured."""
    graph.capture_begin(**options)
    made = work()
    graph.capture_end()
    return made


def pools_of(stream):
    """The pool of each segment."""
    return [segment["segment_pool_id"] for segment in forebay.memory.memory_snapshot(stream.device)["segments"]]


def broken(graph, call):
    """The number of the error that the call raises, and of the one that the end then raises."""
    codes = []
    for step in (call, graph.capture_end):
        with pytest.raises(DeviceError) as raised:
            step()
        codes.append(raised.value.code)
    return codes
