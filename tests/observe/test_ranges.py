"""Named ranges: notifications of tools, their order, threads, and unmatched ends."""

from __future__ import annotations

import sys
import threading
import types

import pytest

import forebay
from forebay.observe.ranges import ranges


class CallLog:
    """A tool that lists its calls."""

    def __init__(self):
        self.calls = []

    def push(self, name):
        self.calls.append(("push", name))

    def pop(self, ended):
        self.calls.append(("pop", ended.name, ended.depth))

    def start(self, number, name):
        self.calls.append(("start", name))

    def end(self, number, ended):
        self.calls.append(("end", ended.name))

    def mark(self, at):
        self.calls.append(("mark", at.name))


def test_ranges_without_tools_have_no_depth_and_no_number():
    depths = [ranges.push("a"), ranges.push("b"), ranges.pop(), ranges.pop(), ranges.pop()]
    assert (depths, ranges.start("c")) == ([-2] * 5, 0)


def test_tool_is_notified_in_order():
    tool = CallLog()
    with ranges.attached(tool):
        depths = [ranges.push("a"), ranges.push("b"), ranges.pop(), ranges.pop(), ranges.pop()]
        number = ranges.start("c")
        ranges.mark("d")
        ranges.end(number)
        ranges.end(number)
    ranges.mark("after")
    assert depths == [0, 1, 1, 0, -2]
    assert number > 0
    assert tool.calls == [
        ("push", "a"),
        ("push", "b"),
        ("pop", "b", 1),
        ("pop", "a", 0),
        ("start", "c"),
        ("mark", "d"),
        ("end", "c"),
    ]


def test_tool_attached_inside_a_range_is_notified_of_its_end():
    ranges.push("early")
    with ranges.recorded() as found:
        assert ranges.open_ranges() == ("early",)
        ranges.pop()
    assert [(each.name, each.depth) for each in found] == [("early", 0)]
    assert found[0].begin <= found[0].end


def test_threads_nest_separately_and_may_end_each_others_ranges():
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


def test_recorded_keeps_the_newest_ranges():
    with ranges.recorded(most=2) as found:
        for name in "abc":
            ranges.mark(name)
    assert [each.name for each in found] == ["b", "c"]


def test_history_with_annotations_includes_ranges(clean):
    forebay.memory.record_history(annotations=True)
    try:
        ranges.push("step")
        ranges.pop()
        recorded = forebay.memory.memory_snapshot()["external_annotations"]
    finally:
        forebay.memory.record_history(None)
    assert [(each["stage"], each["name"]) for each in recorded] == [("START", "step"), ("END", "step")]


class FakeNvtx(types.ModuleType):
    """A fake `nvtx` package that lists its calls."""

    def __init__(self, domain):
        super().__init__("nvtx")
        self.calls = []
        self.get_domain = lambda: domain
        for name in ("push_range", "mark", "end_range"):
            setattr(self, name, lambda value, name=name: self.calls.append((name, value)))
        self.pop_range = lambda: self.calls.append(("pop_range",))
        self.start_range = lambda text: (self.calls.append(("start_range", text)), (7, 0))[1]


@pytest.fixture
def fresh(monkeypatch):
    """The state before the first range of the process."""
    monkeypatch.setattr(ranges, "_looked_for_nvtx", False)
    monkeypatch.setattr(ranges, "_tools", ())
    monkeypatch.delitem(sys.modules, "forebay.observe.ranges.nvtx", raising=False)
    return monkeypatch


class DummyDomain:
    """The domain of `nvtx` without a profiler."""


def install_nvtx(monkeypatch, domain):
    library, inner = FakeNvtx(domain), types.ModuleType("nvtx.nvtx")
    inner.DummyDomain = DummyDomain
    monkeypatch.setitem(sys.modules, "nvtx", library)
    monkeypatch.setitem(sys.modules, "nvtx.nvtx", inner)
    return library


def test_nvtx_is_notified_if_a_profiler_is_attached(fresh):
    library = install_nvtx(fresh, object())
    assert [ranges.push("a"), ranges.pop()] == [0, 0]
    number = ranges.start("b")
    ranges.mark("c")
    ranges.end(number)
    assert library.calls == [
        ("push_range", "a"),
        ("pop_range",),
        ("start_range", "b"),
        ("mark", "c"),
        ("end_range", (7, 0)),
    ]


def test_nvtx_is_not_notified_without_a_profiler(fresh):
    library = install_nvtx(fresh, DummyDomain())
    assert [ranges.push("a"), ranges.pop()] == [-2, -2]
    assert library.calls == []


def test_real_nvtx_package_accepts_all_calls(fresh):
    pytest.importorskip("nvtx", reason="the extra nvtx is not installed")
    assert ranges.push("a") == -2  # tests run without a profiler
    ranges.pop()
    from forebay.observe.ranges.nvtx import NvtxLibrary

    library = NvtxLibrary()
    ended = ranges.Range("a", 0, 1, 2, 0)
    library.push("a")
    library.pop(ended)
    library.start(1, "b")
    library.end(1, ended)
    library.mark(ended)
    assert not library.profiler_attached


def test_missing_nvtx_package_is_ignored(fresh):
    fresh.setitem(sys.modules, "nvtx", None)
    assert [ranges.push("a"), ranges.pop()] == [-2, -2]
