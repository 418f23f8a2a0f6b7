"""Who is told of what happens to graphs."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from support.graph_scenes import captured

import forebay
from forebay.runtime.graphs import graph_hooks
from forebay.runtime.graphs.graph import Graph


def test_hooks_are_called_in_order(stream):
    told, graph, numbers = [], Graph(), forebay.zeros(1)
    names = ("capture_start", "capture_end", "post_instantiate", "replay_start", "replay_end")
    handles = [
        getattr(graph, f"register_{name}_hook")(lambda g, name=name: told.append((name, g is graph))) for name in names
    ]
    for hooks, name in (
        (graph_hooks.capture_began, "all: start"),
        (graph_hooks.captured, "all: end"),
        (graph_hooks.instantiated, "all: instantiated"),
        (graph_hooks.replay_began, "all: replay"),
        (graph_hooks.replayed, "all: replayed"),
    ):
        handles.append(hooks.add(lambda g, name=name: told.append((name, g is graph))))
    captured(graph, lambda: numbers.fill_(1))
    graph.replay()
    assert [name for name, _ in told] == [
        "all: start",
        "capture_start",
        "all: end",
        "capture_end",
        "all: instantiated",
        "post_instantiate",
        "all: replay",
        "replay_start",
        "all: replayed",
        "replay_end",
    ]
    assert all(same for _, same in told)
    for handle in handles:
        handle.remove()
        handle.remove()
    told.clear()
    graph.replay()
    assert told == []


def test_what_is_kept_for_the_end(stream):
    told, graph, numbers = [], Graph(), forebay.zeros(1)
    kept = threading.Event()
    held = weakref.ref(kept)
    captured(graph, lambda: numbers.fill_(1))
    graph.register_destroy_callback(lambda: told.append(1), synchronize_before_release=True)
    graph.register_destroy_callback(lambda: told.append(2)).remove()
    graph.register_destroy_callback(lambda: 1 / 0)
    graph.register_destroy_callback(lambda: told.append(3))
    graph.retain_object(kept)
    del kept
    graph.replay()
    assert held() is not None
    with pytest.warns(forebay.ForebayWarning, match="ZeroDivisionError"):
        graph.reset()
    assert told == [1, 3]
    assert held() is None
    graph.register_destroy_callback(lambda: told.append(4))
    del graph
    gc.collect()
    assert told == [1, 3, 4]


def test_a_hook_that_fails_at_the_start_leaves_no_capture(stream):
    numbers, graph = forebay.zeros(1), Graph()
    with graph.register_capture_start_hook(lambda _: 1 / 0), pytest.raises(ZeroDivisionError):
        graph.capture_begin()
    assert not stream.is_capturing()
    captured(graph, lambda: numbers.fill_(1))
    with graph.register_replay_start_hook(lambda _: 1 / 0), pytest.raises(ZeroDivisionError):
        graph.replay()
    assert numbers.tolist() == [0]
