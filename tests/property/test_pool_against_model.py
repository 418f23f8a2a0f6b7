"""Comparison of the native pool with its reference model, step by step."""

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
from forebay.records.model import BLOCK, SEGMENT

BOUNDARIES = [1, 511, 512, 513, 1024, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 20 * MIB, 21 * MIB]
sizes = st.sampled_from(BOUNDARIES) | st.integers(1, 8192) | st.integers(1, 24 * MIB)
queues = st.integers(0, 2)
choices = st.integers(0, 1 << 30)  # reduced modulo the number of alternatives


class Both:
    """The native pool and the model, run side by side with every result compared."""

    def __init__(self):
        self.native, self.model = Pool(), ModelPool()
        self.blocks = []  # live native blocks
        self.pending = {}  # address to the token of the pending free
        self.low = self.high = 1 << 40  # range of the segments, which are adjacent

    def try_allocate(self, nbytes, queue):
        block = self.native.try_allocate(nbytes, queue)
        address = self.model.try_allocate(nbytes, queue)
        assert address == (None if block is None else block.address)
        if block is not None:
            self.blocks.append(block)
        return block

    def allocate(self, nbytes, queue, below):
        if self.try_allocate(nbytes, queue) is None:
            self.adopt(*self.native.segment_size(nbytes), queue, below)
            assert self.try_allocate(nbytes, queue) is not None

    def free(self, choice):
        block = self.blocks.pop(choice % len(self.blocks))
        address, users = block.address, self.model._find(block.address)[1].users
        is_pending = self.model.free(address)
        block.free()
        deferred = self.native.deferred()
        assert [sorted(queues) for _, queues, *_ in deferred] == ([sorted(users)] if is_pending else [])
        if is_pending:
            self.pending[address] = deferred[0][0]
            self.native.acknowledge_deferred(deferred[0][0])

    def record_stream(self, choice, queue):
        block = self.blocks[choice % len(self.blocks)]
        block.record_stream(queue)
        self.model.record_stream(block.address, queue)

    def complete_free(self, choice):
        address = list(self.pending)[choice % len(self.pending)]
        self.native.complete_free(self.pending.pop(address))
        self.model.complete_free(address)

    def adopt(self, size, small, queue, below):
        """Adopt a segment adjacent to the previous ones, with which it must not be merged."""
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
        assert self.native.check_invariants() is None


class PoolAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.both = Both()

    @rule(nbytes=sizes, queue=queues)
    def try_allocate(self, nbytes, queue):
        self.both.try_allocate(nbytes, queue)

    @rule(nbytes=sizes, queue=queues, below=st.booleans())
    def allocate(self, nbytes, queue, below):
        self.both.allocate(nbytes, queue, below)

    @rule(quanta=st.integers(1, 64 << 10), small=st.booleans(), queue=queues, below=st.booleans())
    def adopt_a_segment_of_any_size(self, quanta, small, queue, below):
        self.both.adopt(quanta * 512, small, queue, below)

    @precondition(lambda self: self.both.blocks)
    @rule(choice=choices)
    def free(self, choice):
        self.both.free(choice)

    @precondition(lambda self: self.both.blocks)
    @rule(choice=choices, queue=queues)
    def record_stream(self, choice, queue):
        self.both.record_stream(choice, queue)

    @precondition(lambda self: self.both.pending)
    @rule(choice=choices)
    def complete_free(self, choice):
        self.both.complete_free(choice)

    @precondition(lambda self: self.both.model.segments)
    @rule(choice=choices)
    def evict(self, choice):
        segments = self.both.model.segments
        self.both.evict(segments[choice % len(segments)].address)

    @rule(which=st.sampled_from(["reset_peaks", "reset_accumulated"]))
    def reset(self, which):
        self.both.reset(which)

    @invariant()
    def tables_are_equal(self):
        self.both.compare()


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_random_operations_give_equal_results():
    chance = random.Random(20)
    both = Both()
    for step in range(200_000):
        choice, queue = chance.randrange(1 << 30), chance.randrange(3)
        at = chance.random()
        if not both.blocks or (at < 0.5 and len(both.blocks) < 100):
            nbytes = chance.choice(BOUNDARIES) if at < 0.1 else int(2 ** chance.uniform(0, 24.5))
            both.allocate(nbytes, queue, below=choice % 2)
        elif at < 0.9:
            both.free(choice)
        elif at < 0.95:
            both.record_stream(choice, queue)
        elif at < 0.999:
            if both.pending:
                both.complete_free(choice)
        else:
            for address, _ in both.model.evictable():
                both.evict(address)
            both.reset(chance.choice(["reset_peaks", "reset_accumulated"]))
        if step % 1000 == 0:
            both.compare()
    assert len(both.native.tables()[1]) > 100 * BLOCK.itemsize  # the pool was not empty
    both.compare()


@pytest.mark.parametrize("nbytes", [*BOUNDARIES, 140_000, 700_000, 9 * MIB, 11 * MIB + 3, (1 << 60) - 1])
def test_sizes_are_equal(nbytes):
    native = Pool()
    assert model.rounded(nbytes) == native.block_size(nbytes)
    for fine in (False, True):
        native.set_policy(
            (1,) * 16, (1 << 64) - 1, 20 * MIB, 20 * MIB, expandable=False, track_age=False, exact_segments=fine
        )
        assert model.segment_size(nbytes, fine) == native.segment_size(nbytes)
