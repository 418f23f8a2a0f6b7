"""Hooks and destroy callbacks of graphs."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest
from support.graph_scenes import capture

import forebay
from forebay.runtime.graphs import graph_hooks
from forebay.runtime.graphs.graph import Graph


def test_hooks_are_called_in_order(stream):
    called, graph, numbers = [], Graph(), forebay.zeros(1)
    names = ("capture_start", "capture_end", "post_instantiate", "replay_start", "replay_end")
    handles = [
        getattr(graph, f"register_{name}_hook")(lambda g, name=name: called.append((name, g is graph)))
        for name in names
    ]
    for hooks, name in (
        (graph_hooks.capture_began, "all: capture start"),
        (graph_hooks.captured, "all: capture end"),
        (graph_hooks.instantiated, "all: instantiate"),
        (graph_hooks.replay_began, "all: replay start"),
        (graph_hooks.replayed, "all: replay end"),
    ):
        handles.append(hooks.add(lambda g, name=name: called.append((name, g is graph))))
    capture(graph, lambda: numbers.fill_(1))
    graph.replay()
    assert [name for name, _ in called] == [
        "all: capture start",
        "capture_start",
        "all: capture end",
        "capture_end",
        "all: instantiate",
        "post_instantiate",
        "all: replay start",
        "replay_start",
        "all: replay end",
        "replay_end",
    ]
    assert all(same for _, same in called)
    for handle in handles:
        handle.remove()
        handle.remove()
    called.clear()
    graph.replay()
    assert called == []


def test_reset_calls_destroy_callbacks_and_releases_objects(stream):
    called, graph, numbers = [], Graph(), forebay.zeros(1)
    kept = threading.Event()
    reference = weakref.ref(kept)
    capture(graph, lambda: numbers.fill_(1))
    graph.register_destroy_callback(lambda: called.append(1), synchronize_before_release=True)
    graph.register_destroy_callback(lambda: called.append(2)).remove()
    graph.register_destroy_callback(lambda: 1 / 0)
    graph.register_destroy_callback(lambda: called.append(3))
    graph.retain_object(kept)
    del kept
    graph.replay()
    assert reference() is not None
    with pytest.warns(forebay.ForebayWarning, match="ZeroDivisionError"):
        graph.reset()
    assert called == [1, 3]
    assert reference() is None
    graph.register_destroy_callback(lambda: called.append(4))
    del graph
    gc.collect()
    assert called == [1, 3, 4]


class Alarm(Exception):
    """An exception of a signal handler that is no KeyboardInterrupt."""


@pytest.fixture
def interrupt():
    """Let a signal handler raise Alarm."""

    def handler(*_):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda *_: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_interrupted_hook_passes_the_interrupt_on(stream, interrupt):
    graph, numbers = Graph(), forebay.zeros(1)
    capture(graph, lambda: numbers.fill_(1))
    with graph_hooks.replayed.add(interrupt), pytest.raises(Alarm):
        graph.replay()
    graph.replay()


def test_interrupt_of_a_destroy_callback_arrives_after_the_other_callbacks(stream, interrupt, recwarn):
    """Previously it became a warning if its class was derived from Exception."""
    called, graph, numbers = [], Graph(), forebay.zeros(1)
    graph.register_destroy_callback(interrupt)
    graph.register_destroy_callback(lambda: called.append(1))
    capture(graph, lambda: numbers.fill_(1))

    def delete():
        nonlocal graph
        graph = None
        for _ in range(9):  # late exceptions arrive at the end of an iteration
            pass

    with pytest.raises(Alarm):
        delete()
    assert (called, [str(each.message) for each in recwarn]) == ([1], [])


def test_failing_capture_start_hook_leaves_no_capture(stream):
    numbers, graph = forebay.zeros(1), Graph()
    with graph.register_capture_start_hook(lambda _: 1 / 0), pytest.raises(ZeroDivisionError):
        graph.capture_begin()
    assert not stream.is_capturing()
    capture(graph, lambda: numbers.fill_(1))
    with graph.register_replay_start_hook(lambda _: 1 / 0), pytest.raises(ZeroDivisionError):
        graph.replay()
    assert numbers.tolist() == [0]
