"""Helpers for graph tests."""

from __future__ import annotations

import pytest

import forebay
from forebay.errors import DeviceError


def capture(graph, work, **options):
    """Capture the work and return its result."""
    graph.capture_begin(**options)
    result = work()
    graph.capture_end()
    return result


def segment_pools(stream):
    """Return the pool id of each segment of the stream's device."""
    return [segment["segment_pool_id"] for segment in forebay.memory.memory_snapshot(stream.device)["segments"]]


def error_codes(graph, call):
    """Return the codes of the DeviceErrors that the call and then `capture_end` raise."""
    codes = []
    for step in (call, graph.capture_end):
        with pytest.raises(DeviceError) as raised:
            step()
        codes.append(raised.value.code)
    return codes
