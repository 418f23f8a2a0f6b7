"""Comparison of a simulated device with the reference model of the allocator, under random settings."""

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
choices = st.integers(0, 1 << 30)  # reduced modulo the number of alternatives


@pytest.fixture(autouse=True)
def no_advice(monkeypatch):
    """Disable the advice in OOM messages, which replays the history and costs as much as a whole program."""
    monkeypatch.setattr(oom_message, "ADVISERS", [])


def choose(candidates, choice):
    return list(candidates)[choice % len(candidates)]


class DeviceAgainstModel(RuleBasedStateMachine):
    @initialize(seed=choices, mebibytes=st.sampled_from([32, 100, 256, 4000]))
    def begin(self, seed, mebibytes):
        self.chance = random.Random(seed)
        text, self.large = random_programs.random_settings(self.chance)
        self.both = SideBySide(mebibytes * MIB, text)

    def do(self, *operation):
        self.both.do(operation)

    @rule(nbytes=sizes, stream=streams)
    def allocate(self, nbytes, stream):
        self.do("allocate", nbytes, stream)

    @precondition(lambda self: self.both.live)
    @rule(choice=choices)
    def free(self, choice):
        self.do("free", choose(self.both.live, choice))

    @precondition(lambda self: self.both.live)
    @rule(choice=choices, stream=streams)
    def record_stream(self, choice, stream):
        self.do("record_stream", choose(self.both.live, choice), stream)

    @rule(of=st.sampled_from(["hold_events", "release_events", "synchronize"]), stream=streams)
    def synchronise(self, of, stream):
        self.do(of, max(stream % 3, 1) if of == "hold_events" else (stream or None))

    @rule()
    def apply_settings(self):
        text, self.large = random_programs.random_settings(self.chance, self.large)
        self.do("apply_settings", text)

    @rule(fraction=st.sampled_from([0.0, 0.3, 0.8, 1.0, -1.0]))
    def set_memory_fraction(self, fraction):
        self.do("set_memory_fraction", fraction)

    @rule(of=st.sampled_from(["empty_cache", "reset_peak_stats", "reset_accumulated_stats", "memory_info"]))
    def call_without_arguments(self, of):
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
        self.do(of, choose(self.both.pools, choice))

    @precondition(lambda self: self.both.capture is None)
    @rule(stream=streams, choice=st.none() | choices)
    def begin_capture(self, stream, choice):
        self.do("begin_capture", 1 + stream, choose([None, *self.both.pools], choice or 0))

    @precondition(lambda self: self.both.capture is not None)
    @rule()
    def end_capture(self):
        self.do("end_capture")

    @precondition(lambda self: self.both.graphs)
    @rule(choice=choices)
    def release_capture(self, choice):
        self.do("release_capture", choose(self.both.graphs, choice))

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
    def results_are_equal(self):
        self.both.check()


TestDeviceAgainstModel = DeviceAgainstModel.TestCase
TestDeviceAgainstModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("part", range(4))
def test_random_programs_give_equal_results(part):
    """Results are compared at once, statistics and blocks every 50 steps. `benchmarks/bench_soak.py` runs more."""
    for seed in range(part, 200, 4):
        total, text, program = random_programs.program(seed, 1000)
        try:
            side_by_side.run(total, text, program, every=50)
        except Different as difference:
            difference.add_note(f"in random_programs.program({seed}, 1000)")
            raise


def test_random_programs_cover_rare_events():
    """Equal results mean little if the programs do not reach the interesting states."""
    counted = dict.fromkeys(("num_ooms", "num_alloc_retries", "num_oom_rejections", "oversize_allocations.peak"), 0)
    events = {"unmapped": 0, "pending": 0, "borrowed": 0}
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
        events["unmapped"] += "segment_unmap" in actions
        events["pending"] += both.device.stats()["active.all.peak"] > both.device.stats()["allocation.all.peak"]
        events["borrowed"] += any(pool for pool in both.device.allocator.private.ever_used)
    assert min(*counted.values(), *events.values()) > 3, (counted, events)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda both: setattr(both.model.statistics.counters["active", "all"], "peak", 7), "active.all.peak: 1 and in"),
        (lambda both: setattr(both.model.memory, "used", 5), "device used: 2097152 and in the model 5"),
        (
            lambda both: setattr(both.model.cache.small.segments[0].blocks[0], "requested", 3),
            "requested_bytes.all.current",
        ),
        (lambda both: both.model.cache.history.entries.pop(), "the history, entry, 2: "),
        (lambda both: both.device.free(both.live[1]), "free"),
    ],
)
def test_difference_is_detected(fault, message):
    both = SideBySide(64 * MIB)
    both.do(("record_history", {"context": None}))
    both.do(("allocate", 1000, 0))
    both.check()
    fault(both)

    def continue_program():
        both.do(("free", 1))
        both.check()

    with pytest.raises(Different, match=message):
        continue_program()
