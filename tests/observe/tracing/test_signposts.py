"""Signposts on queues without host functions and during captures. tests/mps/test_profiler.py tests them on queues."""

from __future__ import annotations

import types

import pytest

import forebay
from forebay.observe.tracing.signposts import Signposts
from forebay.runtime.base import observers


class Signposter:
    """A fake of the package's class, which keeps the calls."""

    def __init__(self):
        self.calls = []

    def begin_interval(self, text):
        self.calls.append(("begin", text))
        return lambda text: self.calls.append(("end", text))

    def emit_event(self, text):
        self.calls.append(("event", text))


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({"intervals": True, "events": True}, ["begin"], ["begin", "end", "event"]),
        ({"intervals": True, "events": False}, ["begin"], ["begin", "end"]),
        ({"intervals": False, "events": True}, [], ["event"]),
    ],
)
def test_queue_without_host_functions_emits_at_once(options, before, after):
    signposter, queue = Signposter(), types.SimpleNamespace(handle=7)
    tracer = Signposts(signposter, **options)
    begun = tracer.queueing(queue)
    assert [kind for kind, _ in signposter.calls] == before
    tracer.queued(queue, begun, "copy", "copy_", 40)
    assert [kind for kind, _ in signposter.calls] == after
    assert {text for kind, text in signposter.calls if kind != "begin"} == {"copy copy_, 40 bytes"}


def test_operation_without_bytes_has_only_its_name():
    signposter, queue = Signposter(), types.SimpleNamespace(handle=7)
    tracer = Signposts(signposter, intervals=True, events=False)
    tracer.queued(queue, tracer.queueing(queue), "event", "record")
    assert signposter.calls == [("begin", "queue 7"), ("end", "event record")]


def test_captured_work_has_no_signposts(emulated, monkeypatch):
    """A captured function would run at each replay."""
    signposter = Signposter()
    tensor, graph = forebay.zeros(4, device="cuda"), forebay.cuda.CUDAGraph()
    forebay.synchronize("cuda")
    with forebay.cuda.graph(graph):
        monkeypatch.setattr(observers, "tracer", Signposts(signposter, intervals=True, events=True))
        tensor.fill_(1)
        monkeypatch.setattr(observers, "tracer", None)
    graph.replay()
    assert tensor.tolist() == [1, 1, 1, 1]
    assert signposter.calls == []
