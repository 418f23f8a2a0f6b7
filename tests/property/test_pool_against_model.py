"""The native pool and the slow, obvious one do the same, step by step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import model
from support.model import MIB, ModelPool

from forebay._core import Pool
from forebay.snapshot.model import BLOCK, SEGMENT

BOUNDARIES = [1, 511, 512, 513, 1024, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB, 21 * MIB]
sizes = st.sampled_from(BOUNDARIES) | st.integers(1, 8192) | st.integers(1, 24 * MIB)
queues = st.integers(0, 2)
choices = st.integers(0, 1 << 30)  # taken modulo what there is to choose from


class Both:
    """Drives the native pool and the model side by side; every result is compared at once."""

    def __init__(self):
        self.native, self.model = Pool(), ModelPool()
        self.blocks = []  # native ones, live
        self.waiting = {}  # address to the token that settles it
        self.low = self.high = 1 << 40  # segments lie between, side by side

    def take(self, nbytes, queue):
        block = self.native.take(nbytes, queue)
        address = self.model.take(nbytes, queue)
        assert address == (None if block is None else block.address)
        if block is not None:
            self.blocks.append(block)
        return block

    def allocate(self, nbytes, queue, below):
        if self.take(nbytes, queue) is None:
            self.adopt(*self.native.segment_size(nbytes), queue, below)
            assert self.take(nbytes, queue) is not None

    def give(self, choice):
        block = self.blocks.pop(choice % len(self.blocks))
        address, uses = block.address, self.model._find(block.address)[1].uses
        waits = self.model.give(address)
        block.free()
        deferred = self.native.deferred()
        assert [sorted(queues) for _, queues, _ in deferred] == ([sorted(uses)] if waits else [])
        if waits:
            self.waiting[address] = deferred[0][0]
            self.native.heard(deferred[0][0])

    def use(self, choice, queue):
        block = self.blocks[choice % len(self.blocks)]
        block.used_on(queue)
        self.model.use(block.address, queue)

    def settle(self, choice):
        address = list(self.waiting)[choice % len(self.waiting)]
        self.native.settle(self.waiting.pop(address))
        self.model.settle(address)

    def adopt(self, size, small, queue, below):
        """At an address that touches the segments before it: they must not be merged."""
        address = self.low - size if below else self.high
        self.low, self.high = min(self.low, address), max(self.high, address + size)
        self.native.adopt(address, size, queue, small)
        self.model.adopt(address, size, queue, small)

    def evict(self, address):
        assert self.model.evict(address) == self.native.evict(address)

    def reset(self, which):
        getattr(self.native, which)()
        getattr(self.model, which)()

    def compare(self):
        segments, blocks, *_ = self.native.tables()
        columns = np.frombuffer(segments, SEGMENT)[["address", "nbytes", "queue", "small"]]
        assert [(s.address, s.size, s.queue, s.small) for s in self.model.segments] == columns.tolist()
        columns = np.frombuffer(blocks, BLOCK)[["address", "nbytes", "requested", "state"]]
        assert [(b.address, b.size, b.requested, b.state) for _, b in self.model] == columns.tolist()
        assert self.model.counts() == self.native.counts()
        idle = [row[:2] for small in (False, True) for row in self.native.evictable(small)]
        assert sorted(self.model.evictable()) == sorted(idle)
        assert self.native.broken() is None


class PoolAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.both = Both()

    @rule(nbytes=sizes, queue=queues)
    def take(self, nbytes, queue):
        self.both.take(nbytes, queue)

    @rule(nbytes=sizes, queue=queues, below=st.booleans())
    def allocate(self, nbytes, queue, below):
        self.both.allocate(nbytes, queue, below)

    @rule(quanta=st.integers(1, 64 << 10), small=st.booleans(), queue=queues, below=st.booleans())
    def adopt_a_segment_of_any_size(self, quanta, small, queue, below):
        self.both.adopt(quanta * 512, small, queue, below)

    @precondition(lambda self: self.both.blocks)
    @rule(choice=choices)
    def give(self, choice):
        self.both.give(choice)

    @precondition(lambda self: self.both.blocks)
    @rule(choice=choices, queue=queues)
    def use(self, choice, queue):
        self.both.use(choice, queue)

    @precondition(lambda self: self.both.waiting)
    @rule(choice=choices)
    def settle(self, choice):
        self.both.settle(choice)

    @precondition(lambda self: self.both.model.segments)
    @rule(choice=choices)
    def evict(self, choice):
        segments = self.both.model.segments
        self.both.evict(segments[choice % len(segments)].address)

    @rule(which=st.sampled_from(["reset_peaks", "reset_accumulated"]))
    def reset(self, which):
        self.both.reset(which)

    @invariant()
    def they_agree(self):
        self.both.compare()


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_two_hundred_thousand_operations():
    chance = random.Random(20)
    both = Both()
    for step in range(200_000):
        choice, queue = chance.randrange(1 << 30), chance.randrange(3)
        at = chance.random()
        if not both.blocks or (at < 0.5 and len(both.blocks) < 100):
            nbytes = chance.choice(BOUNDARIES) if at < 0.1 else int(2 ** chance.uniform(0, 24.5))
            both.allocate(nbytes, queue, below=choice % 2)
        elif at < 0.9:
            both.give(choice)
        elif at < 0.95:
            both.use(choice, queue)
        elif at < 0.999:
            if both.waiting:
                both.settle(choice)
        else:
            for address, _ in both.model.evictable():
                both.evict(address)
            both.reset(chance.choice(["reset_peaks", "reset_accumulated"]))
        if step % 1000 == 0:
            both.compare()
    assert len(both.native.tables()[1]) > 100 * BLOCK.itemsize  # it was not an empty pool all the time
    both.compare()


@pytest.mark.parametrize("nbytes", [*BOUNDARIES, 140_000, 700_000, 9 * MIB, 11 * MIB + 3, (1 << 60) - 1])
def test_sizes_are_the_same(nbytes):
    native = Pool()
    assert model.rounded(nbytes) == native.rounded(nbytes)
    for fine in (False, True):
        native.set_policy((1,) * 16, (1 << 64) - 1, 20 * MIB, 20 * MIB, growing=False, ages=False, fine=fine)
        assert model.segment_size(nbytes, fine) == native.segment_size(nbytes)
