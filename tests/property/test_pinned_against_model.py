"""Comparison of the pinned allocator with its reference model, step by step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.model.pinned import ModelPinned

from forebay.simulate import Pinned

KIB, MIB = 1 << 10, 1 << 20
BOUNDARIES = [0, 1, 2, 3, 4095, 4096, 4097, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB + 1, 3 * MIB, 4 * MIB + 1]
sizes = st.sampled_from(BOUNDARIES) | st.integers(1, 8192) | st.integers(MIB, 5 * MIB)
streams = st.integers(0, 3)
choices = st.integers(0, 1 << 30)  # reduced modulo the number of alternatives
CONFIGURATIONS = [
    "",
    "pinned_max_round_threshold_mb:1",
    "pinned_max_cached_size_mb:2",
    "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:3",
    "pinned_reserve_segment_size_mb:2",
    "pinned_reserve_segment_size_mb:1,pinned_max_cached_size_mb:1",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:2",
]


class PinnedAgainstModel(RuleBasedStateMachine):
    """Both allocators side by side. Addresses are compared by the order of the blocks' creation."""

    @initialize(configuration=st.sampled_from(CONFIGURATIONS))
    def start(self, configuration):
        self.both = Pinned(configuration), ModelPinned(configuration)
        self.live = []  # pairs of addresses: the allocator's and the model's
        self.addresses = {}  # the model's to the allocator's

    def each(self, call, *arguments):
        for side in self.both:
            getattr(side, call)(*arguments)

    @rule(nbytes=sizes)
    def allocate(self, nbytes):
        address, model_address = (side.allocate(nbytes) for side in self.both)
        assert bool(address) == bool(model_address)
        if address:
            assert self.addresses.setdefault(model_address, address) == address
            self.live.append((address, model_address))

    @precondition(lambda self: self.live)
    @rule(choice=choices)
    def free(self, choice):
        for side, address in zip(self.both, self.live.pop(choice % len(self.live)), strict=True):
            side.free(address)

    @precondition(lambda self: self.live)
    @rule(choice=choices, stream=streams)
    def record(self, choice, stream):
        for side, address in zip(self.both, self.live[choice % len(self.live)], strict=True):
            side.record_stream(address, stream)

    @rule(level=st.sampled_from([1, 2]))
    def hold(self, level):
        self.each("hold_events", level)

    @rule(stream=streams | st.none())
    def release(self, stream):
        self.each("release_events", stream)

    @rule(stream=streams | st.none())
    def synchronize(self, stream):
        self.each("synchronize", stream)

    @rule(call=st.sampled_from(["empty_cache", "reset_peak_stats", "reset_accumulated_stats"]))
    def other(self, call):
        self.each(call)

    @rule(megabytes=st.integers(1, 4), key=st.sampled_from(["round_threshold", "cached_size"]))
    def change(self, megabytes, key):
        self.each("apply_settings", f"pinned_max_{key}_mb:{megabytes}")

    @invariant()
    def statistics_are_equal(self):
        stats, model_stats = (side.stats() for side in self.both)
        assert {key: number for key, number in stats.items() if "_time." not in key} == model_stats
        assert self.both[0].broken() is None

    def teardown(self):
        if not hasattr(self, "both"):
            return
        for address, model_address in self.live:
            self.both[0].free(address)
            self.both[1].free(model_address)
        self.each("release_events")
        self.each("empty_cache")
        self.statistics_are_equal()
        assert self.both[0].stats()["allocations.current"] == 0


TestPinnedAgainstModel = PinnedAgainstModel.TestCase
TestPinnedAgainstModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
