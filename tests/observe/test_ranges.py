"""Named ranges: who hears of them, in which order, and what threads and ends out of place do."""

from __future__ import annotations

import sys
import threading
import types

import pytest

import forebay
from forebay.observe.ranges import ranges


class Listener:
    def __init__(self):
        self.heard = []

    def push(self, name):
        self.heard.append(("push", name))

    def pop(self, ended):
        self.heard.append(("pop", ended.name, ended.depth))

    def start(self, number, name):
        self.heard.append(("start", name))

    def end(self, number, ended):
        self.heard.append(("end", ended.name))

    def mark(self, at):
        self.heard.append(("mark", at.name))


def test_without_a_tool_nothing_has_a_depth_or_a_number():
    assert [ranges.push("a"), ranges.push("b"), ranges.pop(), ranges.pop(), ranges.pop(), ranges.start("c")] == [
        -2
    ] * 5 + [0]


def test_a_tool_hears_of_everything_in_order():
    listener = Listener()
    with ranges.attached(listener):
        depths = [ranges.push("a"), ranges.push("b"), ranges.pop(), ranges.pop(), ranges.pop()]
        number = ranges.start("c")
        ranges.mark("d")
        ranges.end(number)
        ranges.end(number)
    ranges.mark("after")
    assert depths == [0, 1, 1, 0, -2]
    assert number > 0
    assert listener.heard == [
        ("push", "a"),
        ("push", "b"),
        ("pop", "b", 1),
        ("pop", "a", 0),
        ("start", "c"),
        ("mark", "d"),
        ("end", "c"),
    ]


def test_a_tool_that_comes_in_between_hears_the_end():
    ranges.push("early")
    with ranges.recorded() as found:
        assert ranges.open_here() == ("early",)
        ranges.pop()
    assert [(each.name, each.depth) for each in found] == [("early", 0)]
    assert found[0].begin <= found[0].end


def test_threads_nest_each_for_itself_and_may_end_each_others_ranges():
    numbers = []

    def other():
        numbers.append((ranges.push("theirs"), ranges.start("shared")))
        ranges.pop()

    with ranges.recorded() as found:
        ranges.push("mine")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
        ranges.end(numbers[0][1])
        ranges.pop()
    assert numbers[0][0] == 0
    assert [(each.name, each.thread == threading.get_ident()) for each in found] == [
        ("theirs", False),
        ("shared", False),
        ("mine", True),
    ]


def test_only_the_last_ones_are_kept():
    with ranges.recorded(most=2) as found:
        for name in "abc":
            ranges.mark(name)
    assert [each.name for each in found] == ["b", "c"]


def test_a_history_with_annotations_has_them(clean):
    forebay.memory.record_history(annotations=True)
    try:
        ranges.push("step")
        ranges.pop()
        said = forebay.memory.memory_snapshot()["external_annotations"]
    finally:
        forebay.memory.record_history(None)
    assert [(each["stage"], each["name"]) for each in said] == [("START", "step"), ("END", "step")]


class StandIn(types.ModuleType):
    """The `nvtx` package as a profiler's listener would have it."""

    def __init__(self, domain):
        super().__init__("nvtx")
        self.heard = []
        self.get_domain = lambda: domain
        for name in ("push_range", "mark", "end_range"):
            setattr(self, name, lambda what, name=name: self.heard.append((name, what)))
        self.pop_range = lambda: self.heard.append(("pop_range",))
        self.start_range = lambda what: (self.heard.append(("start_range", what)), (7, 0))[1]


@pytest.fixture
def fresh(monkeypatch):
    """As if no range had been made yet."""
    monkeypatch.setattr(ranges, "_looked_for_nvtx", False)
    monkeypatch.setattr(ranges, "_tools", ())
    monkeypatch.delitem(sys.modules, "forebay.observe.ranges.nvtx", raising=False)
    monkeypatch.delattr(forebay.observe, "nvtx_library", raising=False)
    return monkeypatch


class _Dummy:
    pass


def installed(monkeypatch, domain):
    library, inner = StandIn(domain), types.ModuleType("nvtx.nvtx")
    inner.DummyDomain = _Dummy
    monkeypatch.setitem(sys.modules, "nvtx", library)
    monkeypatch.setitem(sys.modules, "nvtx.nvtx", inner)
    return library


def test_nvtx_hears_of_them_where_a_profiler_listens(fresh):
    library = installed(fresh, object())
    assert [ranges.push("a"), ranges.pop()] == [0, 0]
    number = ranges.start("b")
    ranges.mark("c")
    ranges.end(number)
    assert library.heard == [
        ("push_range", "a"),
        ("pop_range",),
        ("start_range", "b"),
        ("mark", "c"),
        ("end_range", (7, 0)),
    ]


def test_nvtx_that_nobody_listens_to_is_left_alone(fresh):
    library = installed(fresh, _Dummy())
    assert [ranges.push("a"), ranges.pop()] == [-2, -2]
    assert library.heard == []


def test_the_real_nvtx_is_asked(fresh):
    pytest.importorskip("nvtx", reason="the extra nvtx is not installed")
    assert ranges.push("a") == -2  # no profiler listens to the tests
    ranges.pop()
    from forebay.observe.ranges.nvtx import NvtxLibrary

    library = NvtxLibrary()
    ended = ranges.Range("a", 0, 1, 2, 0)
    library.push("a")
    library.pop(ended)
    library.start(1, "b")
    library.end(1, ended)
    library.mark(ended)
    assert not library.heard


def test_without_the_package_there_is_none(fresh):
    fresh.setitem(sys.modules, "nvtx", None)
    assert [ranges.push("a"), ranges.pop()] == [-2, -2]
