"""Frees, during a capture, of blocks that several streams use: what an allocation of the capture may reuse.

The expected values were recorded from PyTorch's allocator over a stand-in runtime with capture dependencies.
"""

from __future__ import annotations

import pytest

import forebay
from forebay import cuda

MIB = 1 << 20


@pytest.fixture(params=[True, False])
def reuses(request):
    """Return True if the setting is on."""
    with forebay.emulate("cuda", profile="h200", memory=1 << 30):
        forebay.memory.set_allocator_settings(f"graph_capture_record_stream_reuse:{request.param}")
        yield request.param
        forebay.memory.set_allocator_settings("graph_capture_record_stream_reuse:False")


class Scene:
    """A capture on the stream `a`; `b` and `c` are other streams."""

    def __init__(self):
        self.a, self.b, self.c = (cuda.Stream() for _ in range(3))
        self.graph, self.kept = cuda.CUDAGraph(), []
        cuda.synchronize()

    def __enter__(self):
        cuda.set_stream(self.a)
        self.graph.capture_begin()
        return self

    def __exit__(self, *failed):
        for stream in (self.b, self.c):
            if stream.is_capturing():
                self.a.wait_stream(stream)
        if not failed[0]:
            self.use(self.empty(self.a, 16), self.a)
            self.graph.capture_end()
        cuda.set_stream(cuda.default_stream())

    def empty(self, stream, nbytes=4 * MIB):
        with cuda.stream(stream):
            return forebay.empty(nbytes, dtype=forebay.uint8, device="cuda")

    def use(self, tensor, stream):
        with cuda.stream(stream):
            tensor.zero_()

    def freed(self, owner, *users, work=True):
        """Return the address of a block of `owner` that the users also used before it was freed."""
        tensor = self.empty(owner)
        if work:
            self.use(tensor, owner)
        for user in users:
            user.wait_stream(owner)
            if work:
                self.use(tensor, user)
            tensor.record_stream(user)
        return tensor.data_ptr()

    def reused(self, address, stream):
        """Return True if a new block of the stream has the address."""
        tensor = self.empty(stream)
        if tensor.data_ptr() == address:
            return True
        self.kept.append(tensor)
        return False


def test_block_is_reused_once_its_streams_are_joined(reuses):
    with Scene() as on:
        address = on.freed(on.a, on.b)
        assert not on.reused(address, on.a)
        on.a.wait_stream(on.b)
        assert on.reused(address, on.a) is reuses


def test_work_after_the_free_need_not_be_joined(reuses):
    with Scene() as on:
        address = on.freed(on.a, on.b)
        last_use = cuda.Event()
        last_use.record(on.b)
        on.use(on.empty(on.b), on.b)
        assert not on.reused(address, on.a)
        on.a.wait_event(last_use)
        assert on.reused(address, on.a) is reuses


def test_event_before_the_last_use_is_not_enough(reuses):
    with Scene() as on:
        tensor = on.empty(on.a)
        on.use(tensor, on.a)
        on.b.wait_stream(on.a)
        early = cuda.Event()
        early.record(on.b)
        on.use(tensor, on.b)
        tensor.record_stream(on.b)
        address = tensor.data_ptr()
        del tensor
        on.a.wait_event(early)
        assert not on.reused(address, on.a)
        on.a.wait_stream(on.b)
        assert on.reused(address, on.a) is reuses


def test_all_users_must_be_joined(reuses):
    with Scene() as on:
        address = on.freed(on.a, on.b, on.c)
        on.a.wait_stream(on.b)
        assert not on.reused(address, on.a)
        on.a.wait_stream(on.c)
        assert on.reused(address, on.a) is reuses


def test_users_may_be_joined_through_each_other(reuses):
    with Scene() as on:
        address = on.freed(on.a, on.b, on.c)
        on.b.wait_stream(on.c)
        on.a.wait_stream(on.b)
        assert on.reused(address, on.a) is reuses


def test_only_the_stream_of_the_block_reuses_it(reuses):
    with Scene() as on:
        address = on.freed(on.a, on.b)
        on.a.wait_stream(on.b)
        on.b.wait_stream(on.a)
        assert not on.reused(address, on.b)
        assert on.reused(address, on.a) is reuses


def test_block_of_a_joined_stream_is_reused_there(reuses):
    with Scene() as on:
        on.b.wait_stream(on.a)
        address = on.freed(on.b, on.a)
        assert not on.reused(address, on.b)
        on.b.wait_stream(on.a)
        assert on.reused(address, on.b) is reuses


def test_block_freed_before_any_captured_work_stays_pending(reuses):
    with Scene() as on:
        on.b.wait_stream(on.a)
        address = on.freed(on.a, on.b, work=False)
        on.use(on.empty(on.a, 16), on.a)
        on.a.wait_stream(on.b)
        assert not on.reused(address, on.a)


def test_block_used_outside_the_capture_stays_pending(reuses):
    with Scene() as on:
        tensor = on.empty(on.a)
        on.use(tensor, on.a)
        tensor.record_stream(on.c)
        address = tensor.data_ptr()
        del tensor
        on.c.wait_stream(on.a)
        on.a.wait_stream(on.c)
        assert not on.reused(address, on.a)


def test_allocation_outside_the_capture_does_not_release_its_blocks(reuses):
    """PyTorch frees the block then, although its streams are not joined; see docs/differences.md."""
    with Scene() as on:
        address = on.freed(on.a, on.b)
        on.kept.append(on.empty(on.c))
        assert not on.reused(address, on.a)


def test_invalid_capture_still_frees(reuses):
    on = Scene()
    with cuda.stream(on.a):
        on.graph.capture_begin()
        tensor = on.empty(on.a)
        on.b.wait_stream(on.a)
        tensor.record_stream(on.b)
        with pytest.raises(cuda.AcceleratorError):
            on.a.synchronize()
        del tensor
        on.graph.reset()
    on.empty(cuda.default_stream())
    assert cuda.memory_stats()["active.all.current"] == 0
