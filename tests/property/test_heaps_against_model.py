"""The allocator of heaps and the slow, obvious one do the same, step by step."""

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
choices = st.integers(0, 1 << 30)  # taken modulo what there is to choose from


def any_rules(chance):
    """Devices on which something happens: most are soon under pressure, some are soon full."""
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


class Watched(HeapModel):
    """It counts which way each request went."""

    def __init__(self, **rules):
        super().__init__(**rules)
        self.ways = Counter()

    def _reuse(self, request):
        pressure, cached = request.pressure, len(request.pool.cached())
        found = super()._reuse(request)
        self.ways["reused"] += found is not None
        self.ways["reused though much too long"] += found is not None and found.size > request.size + 32 * MIB
        self.ways["made room under pressure"] += pressure and not request.pressure
        self.ways["made room while busy"] += request.pressure and len(request.pool.cached()) < cached
        return found

    def _collect_garbage(self, pool):
        before = len(self._cached(pool))
        super()._collect_garbage(pool)
        self.ways["garbage"] += len(self._cached(pool)) < before

    def _ask_callbacks_and_reuse(self, request):
        found = super()._ask_callbacks_and_reuse(request)
        self.ways["callback helped"] += found is not None
        return found

    def _make_room_and_place(self, request):
        found = super()._make_room_and_place(request)
        self.ways["gave back"] += found is not None
        return found

    def _empty_and_place(self, request):
        found = super()._empty_and_place(request)
        self.ways["emptied" if found else "out of memory"] += 1
        return found


class Both:
    """Drives the two side by side; every result is compared at once."""

    def __init__(self, rules):
        self.rules = rules
        self.sides = HeapsUnderTest(**rules), Watched(**rules)
        self.live = []  # a buffer of each side

    @property
    def ways(self):
        return self.sides[1].ways

    def each(self, call, *arguments):
        """The result of that method of both; an error counts by its first line."""
        results = []
        for side in self.sides:
            try:
                results.append(getattr(side, call)(*arguments))
            except ForebayError as error:
                results.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        return results

    def same(self, call, *arguments):
        ours, models = self.each(call, *arguments)
        assert ours == models, call

    def allocate(self, nbytes, queue, usage, yielding=0):
        """`yielding` live buffers are freed by a callback, if that is asked."""
        asked = [0, 0]

        def let_go(number):
            asked[number] += 1
            for buffers in self.live[:yielding] if asked[number] == 1 else ():
                self.sides[number].free(buffers[number])
            return yielding > 1

        for number, side in enumerate(self.sides):
            side.callbacks[:] = [lambda number=number: let_go(number)] if yielding else []
        results = self.each("allocate", nbytes, queue, usage)
        assert asked[0] == asked[1]
        if asked[0]:
            del self.live[:yielding]
        said = [result for result in results if isinstance(result, str)]
        assert len(said) != 1, said
        if said:
            assert said[0] == said[1]
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
        """As far as the device has so much."""
        self.set("others", min(nbytes, self.rules["capacity"] - self.sides[1].reserved))

    def compare(self):
        self.same("settle")
        self.same("picture")
        self.same("numbers")
        assert self.sides[0].broken() is None

    def do(self, chance):
        """One operation of a random program."""
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
            self.same("work", queue)
        elif at < 0.93:
            self.same("finish", queue)
        elif at < 0.975:
            self.set("refusals", choice % 3)
        elif at < 0.98:
            self.same("empty")
        elif at < 0.985:
            self.same("set_high", chance.choice([0.0, *RATIOS, 2.0, 2.0]))
        else:
            self.set_others(choice % 4 * 100 * MIB)


class HeapsAgainstModel(RuleBasedStateMachine):
    @initialize(seed=choices)
    def begin(self, seed):
        self.both = Both(any_rules(random.Random(seed)))

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
        self.both.same(act, queue)

    @rule()
    def empty(self):
        self.both.same("empty")

    @rule(ratio=st.sampled_from(RATIOS))
    def set_high(self, ratio):
        self.both.same("set_high", ratio)

    @rule(n=st.integers(0, 3))
    def refuse(self, n):
        self.both.set("refusals", n)

    @rule(mebibytes=st.sampled_from([0, 100, 500]))
    def others(self, mebibytes):
        self.both.set_others(mebibytes * MIB)

    @invariant()
    def they_agree(self):
        self.both.compare()

    def teardown(self):
        if not hasattr(self, "both"):
            return
        while self.both.live:
            self.both.free(0)
        self.both.same("empty")
        self.both.compare()
        assert self.both.sides[0].picture() == {}


TestHeapsAgainstModel = HeapsAgainstModel.TestCase
TestHeapsAgainstModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_fifty_thousand_operations():
    """Results at once, tables and numbers after every fifth; and each way out was taken."""
    ways = Counter()
    for seed in range(50):
        chance = random.Random(seed)
        both = Both(any_rules(chance))
        for step in range(1000):
            both.do(chance)
            if step % 5 == 0:
                both.compare()
        both.compare()
        ways += both.ways
    assert len(ways) == 9, ways
    assert min(ways.values()) > 10, ways


@pytest.mark.parametrize("part", ["picture", "numbers"])
def test_a_planted_difference_is_told(part, monkeypatch):
    both = Both(any_rules(random.Random(1)))
    both.allocate(300, 0, None)
    both.compare()
    monkeypatch.setattr(both.sides[1], part, dict)
    with pytest.raises(AssertionError, match=part):
        both.compare()
