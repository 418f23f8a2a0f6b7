"""Comparison of the heap allocator with its reference model, step by step."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.heaps_under_test import HeapsUnderTest
from support.model.heaps import HeapModel

from forebay.errors import ForebayError

MIB = 1 << 20
BOUNDARIES = [
    *(1, 8, 9, 256, 257),
    *(MIB - 1, MIB, MIB + 1),
    *(10 * MIB - 256, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1),
    *(32 * MIB, 42 * MIB, 100 * MIB),
    *(512 * MIB - 256, 512 * MIB - 1, 512 * MIB, 512 * MIB + 1),
    *(900 * MIB, 1024 * MIB, 2048 * MIB),
]
RATIOS = [0.0, 0.3, 0.5, 1.0, 1.7, 2.0, 2.5]
sizes = st.sampled_from(BOUNDARIES) | st.integers(1, 4 * MIB) | st.integers(1, 64).map(lambda n: n * 12 * MIB)
usages = st.sampled_from([None, None, "shared", "private", "scalar"])
queues = st.integers(0, 1)
choices = st.integers(0, 1 << 30)  # reduced modulo the number of alternatives


def random_device_options(chance):
    """Return options of a device that soon is under memory pressure or full."""
    high = chance.choice([0.0, 1.0, 1.7, 2.0])
    return {
        "recommended": chance.choice([1100, 2000, 4000, 4000, 8000, 1 << 16]) * MIB,
        "longest": 3000 * MIB,
        "unified": chance.random() < 0.7,
        "alignment": chance.choice([256, 256, 16384]),
        "high": high,
        "low": chance.choice([0.0, 0.4, 0.9, 1.0, high or 1.4]),
        "capacity": chance.choice([1 << 20, 1 << 20, 3000, 6000]) * MIB,
    }


class CountingModel(HeapModel):
    """Heap model that counts the outcomes of requests."""

    def __init__(self, **options):
        super().__init__(**options)
        self.outcomes = Counter()

    def _reuse(self, request):
        pressure, cached = request.pressure, len(request.pool.cached())
        found = super()._reuse(request)
        self.outcomes["reused"] += found is not None
        self.outcomes["reused oversized"] += found is not None and found.size > request.size + 32 * MIB
        self.outcomes["released under pressure"] += pressure and not request.pressure
        self.outcomes["released while busy"] += request.pressure and len(request.pool.cached()) < cached
        return found

    def _collect_garbage(self, pool):
        before = len(self._cached(pool))
        super()._collect_garbage(pool)
        self.outcomes["garbage"] += len(self._cached(pool)) < before

    def _run_callbacks_and_reuse(self, request):
        found = super()._run_callbacks_and_reuse(request)
        self.outcomes["callback helped"] += found is not None
        return found

    def _release_and_place(self, request):
        found = super()._release_and_place(request)
        self.outcomes["released and placed"] += found is not None
        return found

    def _empty_and_place(self, request):
        found = super()._empty_and_place(request)
        self.outcomes["emptied" if found else "out of memory"] += 1
        return found


class Both:
    """The allocator and the model, run side by side with every result compared."""

    def __init__(self, options):
        self.options = options
        self.sides = HeapsUnderTest(**options), CountingModel(**options)
        self.live = []  # pairs of buffers, one of each side

    @property
    def outcomes(self):
        return self.sides[1].outcomes

    def call_both(self, method, *arguments):
        """Return the results of a method of both sides; an error is represented by its first line."""
        results = []
        for side in self.sides:
            try:
                results.append(getattr(side, method)(*arguments))
            except ForebayError as error:
                results.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        return results

    def check_same(self, method, *arguments):
        result, model_result = self.call_both(method, *arguments)
        assert result == model_result, method

    def allocate(self, nbytes, queue, usage, yielding=0):
        """Allocate on both sides. The first callback frees `yielding` live buffers."""
        calls = [0, 0]

        def free_buffers(number):
            calls[number] += 1
            for buffers in self.live[:yielding] if calls[number] == 1 else ():
                self.sides[number].free(buffers[number])
            return yielding > 1

        for number, side in enumerate(self.sides):
            side.callbacks[:] = [lambda number=number: free_buffers(number)] if yielding else []
        results = self.call_both("allocate", nbytes, queue, usage)
        assert calls[0] == calls[1]
        if calls[0]:
            del self.live[:yielding]
        errors = [result for result in results if isinstance(result, str)]
        assert len(errors) != 1, errors
        if errors:
            assert errors[0] == errors[1]
        else:
            self.live.append(results)

    def free(self, choice):
        for side, buffer in zip(self.sides, self.live.pop(choice % len(self.live)), strict=True):
            side.free(buffer)

    def use(self, choice, queue):
        for side, buffer in zip(self.sides, self.live[choice % len(self.live)], strict=True):
            side.use(buffer, queue)

    def set(self, name, value):
        for side in self.sides:
            setattr(side, name, value)

    def set_others(self, nbytes):
        """Set the memory outside heaps, limited by the capacity."""
        self.set("others", min(nbytes, self.options["capacity"] - self.sides[1].reserved))

    def compare(self):
        self.check_same("process_pending_frees")
        self.check_same("layout")
        self.check_same("statistics")
        assert self.sides[0].check_invariants() is None

    def do(self, chance):
        """Run one random operation."""
        at, choice, queue = chance.random(), chance.randrange(1 << 30), chance.randrange(2)
        if not self.live or (at < 0.42 and len(self.live) < 40):
            nbytes = chance.choice(BOUNDARIES) if at < 0.3 else int(2 ** chance.uniform(0, 30))
            usage = chance.choice([None, None, None, "shared", "private", "scalar" if nbytes <= MIB else None])
            self.allocate(nbytes, queue, usage, chance.choice([0, 0, 1, 8]))
        elif at < 0.84:
            self.free(choice)
        elif at < 0.87:
            self.use(choice, queue)
        elif at < 0.90:
            self.check_same("work", queue)
        elif at < 0.93:
            self.check_same("finish", queue)
        elif at < 0.975:
            self.set("refusals", choice % 3)
        elif at < 0.98:
            self.check_same("empty")
        elif at < 0.985:
            self.check_same("set_high", chance.choice([0.0, *RATIOS, 2.0, 2.0]))
        else:
            self.set_others(choice % 4 * 100 * MIB)


class HeapsAgainstModel(RuleBasedStateMachine):
    @initialize(seed=choices)
    def begin(self, seed):
        self.both = Both(random_device_options(random.Random(seed)))

    @rule(nbytes=sizes, queue=queues, usage=usages, yielding=st.sampled_from([0, 0, 1, 2]))
    def allocate(self, nbytes, queue, usage, yielding):
        self.both.allocate(nbytes, queue, None if usage == "scalar" and nbytes > MIB else usage, yielding)

    @precondition(lambda self: self.both.live)
    @rule(choice=choices)
    def free(self, choice):
        self.both.free(choice)

    @precondition(lambda self: self.both.live)
    @rule(choice=choices, queue=queues)
    def use(self, choice, queue):
        self.both.use(choice, queue)

    @rule(queue=queues, act=st.sampled_from(["work", "finish"]))
    def work(self, queue, act):
        self.both.check_same(act, queue)

    @rule()
    def empty(self):
        self.both.check_same("empty")

    @rule(ratio=st.sampled_from(RATIOS))
    def set_high(self, ratio):
        self.both.check_same("set_high", ratio)

    @rule(n=st.integers(0, 3))
    def refuse(self, n):
        self.both.set("refusals", n)

    @rule(mebibytes=st.sampled_from([0, 100, 500]))
    def others(self, mebibytes):
        self.both.set_others(mebibytes * MIB)

    @invariant()
    def tables_are_equal(self):
        self.both.compare()

    def teardown(self):
        if not hasattr(self, "both"):
            return
        while self.both.live:
            self.both.free(0)
        self.both.check_same("empty")
        self.both.compare()
        assert self.both.sides[0].layout() == {}


TestHeapsAgainstModel = HeapsAgainstModel.TestCase
TestHeapsAgainstModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_random_operations_give_equal_results():
    """Results are compared at once, tables every fifth step. Every outcome must occur."""
    outcomes = Counter()
    for seed in range(50):
        chance = random.Random(seed)
        both = Both(random_device_options(chance))
        for step in range(1000):
            both.do(chance)
            if step % 5 == 0:
                both.compare()
        both.compare()
        outcomes += both.outcomes
    assert len(outcomes) == 9, outcomes
    assert min(outcomes.values()) > 10, outcomes


@pytest.mark.parametrize("part", ["layout", "statistics"])
def test_difference_is_detected(part, monkeypatch):
    both = Both(random_device_options(random.Random(1)))
    both.allocate(300, 0, None)
    both.compare()
    monkeypatch.setattr(both.sides[1], part, dict)
    with pytest.raises(AssertionError, match=part):
        both.compare()
