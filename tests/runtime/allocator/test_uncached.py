"""Blocks without a cache: each is reserved from the port and released to it."""

from __future__ import annotations

import gc

import pytest

import forebay
from forebay.errors import DeviceError
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.devices.current import opened_for

MIB = 1 << 20


@pytest.fixture
def opened(fake):
    return opened_for("fake")


def take(opened, nbytes=MIB):
    return UncachedBlock(opened.allocator, nbytes, opened.default_queue.handle)


def calls(opened, *names):
    return [call for call in opened.port.calls if call[0] in names]


def test_block_is_released_once(opened):
    block = take(opened)
    address = block.address
    assert (block.size, block.nbytes, block.freed) == (MIB, MIB, False)
    assert repr(block) == f"<UncachedBlock at {address:#x}, 1048576 bytes>"
    block.free()
    block.free()
    del block
    assert calls(opened, "reserve", "release") == [("reserve", MIB), ("release", address)]


def test_freed_block_refuses_further_use(opened):
    block = take(opened)
    block.record_stream(7)
    block.free()
    assert repr(block) == f"<UncachedBlock at {block.address:#x}, freed>"
    with pytest.raises(ValueError, match=f"^the block at {block.address:#x} was already freed$"):
        block.record_stream(7)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_block_has_at_least_one_byte(opened, nbytes):
    with pytest.raises(ValueError, match=f"^cannot take {nbytes} bytes: a block has at least 1$"):
        take(opened, nbytes)
    gc.collect()
    assert calls(opened, "reserve", "release") == []


def test_block_without_memory_releases_nothing(opened):
    with pytest.raises(forebay.OutOfMemory):
        take(opened, 65 * MIB)
    gc.collect()
    assert calls(opened, "release") == []


def test_failed_release_of_a_deleted_block_warns_once(opened, monkeypatch):
    block = take(opened)
    monkeypatch.setattr(opened.port, "release", lambda address: (_ for _ in ()).throw(DeviceError("lost")))
    with pytest.warns(forebay.ForebayWarning, match="an uncached block could not be released: .*lost") as caught:
        del block
    assert len(caught) == 1
