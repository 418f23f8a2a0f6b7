"""A simulated device and the model of the whole allocator do the same, whatever is asked under whichever settings."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import random_programs, side_by_side
from support.random_programs import BOUNDARIES
from support.side_by_side import Different, SideBySide

from forebay.runtime.allocator import oom_message

MIB = 1 << 20
sizes = st.sampled_from(BOUNDARIES) | st.integers(0, 8192) | st.integers(1, 64 * MIB)
streams = st.integers(0, 3)
choices = st.integers(0, 1 << 30)  # taken modulo what there is to choose from


@pytest.fixture(autouse=True)
def no_advice(monkeypatch):
    """What would have helped is found by replays, each of which costs as much as a whole program here."""
    monkeypatch.setattr(oom_message, "ADVISERS", [])


def chosen(from_, choice):
    return list(from_)[choice % len(from_)]


class DeviceAgainstModel(RuleBasedStateMachine):
    @initialize(seed=choices, mebibytes=st.sampled_from([32, 100, 256, 4000]))
    def begin(self, seed, mebibytes):
        self.chance = random.Random(seed)
        text, self.large = random_programs.any_settings(self.chance)
        self.both = SideBySide(mebibytes * MIB, text)

    def do(self, *operation):
        self.both.do(operation)

    @rule(nbytes=sizes, stream=streams)
    def allocate(self, nbytes, stream):
        self.do("allocate", nbytes, stream)

    @precondition(lambda self: self.both.live)
    @rule(choice=choices)
    def free(self, choice):
        self.do("free", chosen(self.both.live, choice))

    @precondition(lambda self: self.both.live)
    @rule(choice=choices, stream=streams)
    def record_stream(self, choice, stream):
        self.do("record_stream", chosen(self.both.live, choice), stream)

    @rule(of=st.sampled_from(["hold_events", "release_events", "synchronize"]), stream=streams)
    def work(self, of, stream):
        self.do(of, max(stream % 3, 1) if of == "hold_events" else (stream or None))

    @rule()
    def apply_settings(self):
        text, self.large = random_programs.any_settings(self.chance, self.large)
        self.do("apply_settings", text)

    @rule(fraction=st.sampled_from([0.0, 0.3, 0.8, 1.0, -1.0]))
    def set_memory_fraction(self, fraction):
        self.do("set_memory_fraction", fraction)

    @rule(of=st.sampled_from(["empty_cache", "reset_peak_stats", "reset_accumulated_stats", "memory_info"]))
    def plain(self, of):
        self.do(of)

    @rule(n=st.integers(0, 4))
    def fail_next(self, n):
        self.do("fail_next", n)

    @rule(mebibytes=st.sampled_from([0, 10, 50, 5000]))
    def set_other_used(self, mebibytes):
        self.do("set_other_used", mebibytes * MIB)

    @rule(use_on_oom=st.booleans(), no_split=st.booleans())
    def new_pool(self, use_on_oom, no_split):
        self.do("new_pool", {"use_on_oom": use_on_oom, "no_split": no_split})

    @precondition(lambda self: self.both.pools)
    @rule(choice=choices, of=st.sampled_from(["enter", "enter", "leave", "release_pool"]))
    def pool(self, choice, of):
        self.do(of, chosen(self.both.pools, choice))

    @precondition(lambda self: self.both.capture is None)
    @rule(stream=streams, choice=st.none() | choices)
    def begin_capture(self, stream, choice):
        self.do("begin_capture", 1 + stream, chosen([None, *self.both.pools], choice or 0))

    @precondition(lambda self: self.both.capture is not None)
    @rule()
    def end_capture(self):
        self.do("end_capture")

    @precondition(lambda self: self.both.graphs)
    @rule(choice=choices)
    def release_capture(self, choice):
        self.do("release_capture", chosen(self.both.graphs, choice))

    @rule(
        enabled=st.sampled_from(["all", "state", None, "some"]),
        max_entries=st.sampled_from([0, 1, 5, 1000]),
        clear_history=st.booleans(),
        skip=st.sampled_from([(), ("alloc",), ("snapshot", "free_completed"), ("dance",)]),
    )
    def record_history(self, enabled, max_entries, clear_history, skip):
        options = {"enabled": enabled, "context": None, "max_entries": max_entries, "clear_history": clear_history}
        self.do("record_history", options | {"skip_actions": skip})

    @invariant()
    def they_agree(self):
        self.both.check()


TestDeviceAgainstModel = DeviceAgainstModel.TestCase
TestDeviceAgainstModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("part", range(4))
def test_two_hundred_thousand_operations(part):
    """Results at once, statistics and blocks after every 50; `benchmarks/soak_allocator.py` does any number."""
    for seed in range(part, 200, 4):
        total, text, program = random_programs.program(seed, 1000)
        try:
            side_by_side.run(total, text, program, every=50)
        except Different as difference:
            difference.add_note(f"in random_programs.program({seed}, 1000)")
            raise


def test_programs_reach_what_they_are_for():
    """That they agree says little where nothing happened."""
    counted = dict.fromkeys(("num_ooms", "num_alloc_retries", "num_oom_rejections", "oversize_allocations.peak"), 0)
    names = {"unmapped": 0, "pending": 0, "borrowed": 0}
    for seed in range(60):
        total, text, program = random_programs.program(seed, 400)
        both = SideBySide(total, text)
        both.do(("record_history", {"context": None}))
        for operation in program:
            if operation[:1] not in {("record_history",), ("reset_accumulated_stats",)}:
                both.do(operation)
        for key in counted:
            counted[key] += both.device.stats()[key] > 0
        actions = {entry["action"] for entry in both.device.snapshot()["device_traces"][0]}
        names["unmapped"] += "segment_unmap" in actions
        names["pending"] += both.device.stats()["active.all.peak"] > both.device.stats()["allocation.all.peak"]
        names["borrowed"] += any(pool for pool in both.device.allocator.private.grown)
    assert min(*counted.values(), *names.values()) > 3, (counted, names)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda both: setattr(both.model.ledger.counters["active", "all"], "peak", 7), "active.all.peak: 1 and in"),
        (lambda both: setattr(both.model.memory, "used", 5), "2097152 bytes were handed out, and 5 in the model"),
        (
            lambda both: setattr(both.model.cache.small.segments[0].blocks[0], "requested", 3),
            "requested_bytes.all.current",
        ),
        (lambda both: both.model.cache.history.entries.pop(), "the history, entry, 2: "),
        (lambda both: both.device.free(both.live[1]), "free"),
    ],
)
def test_a_planted_difference_is_told(fault, words):
    both = SideBySide(64 * MIB)
    both.do(("record_history", {"context": None}))
    both.do(("allocate", 1000, 0))
    both.check()
    fault(both)

    def go_on():
        both.do(("free", 1))
        both.check()

    with pytest.raises(Different, match=words):
        go_on()
