"""Tests of the ability Growable: reserved address space whose pages are committed and decommitted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.errors import DeviceError, OutOfMemory, WrongState
from forebay.spi import Growable, Port, SurvivesFork
from forebay.testing.conformance.helpers import (
    BAD_SIZES,
    MIB,
    drain,
    expect_memory,
    needs,
    needs_memory,
    run_in_child,
)

__all__ = [
    "test_closed_port_rejects_growable_calls",
    "test_commit_and_decommit_accept_any_page_ranges",
    "test_commit_and_decommit_are_idempotent",
    "test_commit_is_all_or_nothing",
    "test_committed_pages_retain_data",
    "test_concurrent_commit_and_decommit",
    "test_forked_child_changes_its_own_pages",
    "test_growable_calls_reject_invalid_ranges",
    "test_recommitted_pages_are_zero",
    "test_release_space_with_committed_pages_raises",
    "test_reserve_space_uses_no_memory",
]

_PAGE = 2 * MIB


@needs(Growable)
def test_reserve_space_uses_no_memory(port: Port) -> None:
    assert isinstance(port, Growable)
    before = free, total = port.memory_info()
    sizes = [-(-total // _PAGE + 1) * _PAGE, 20 * MIB]
    spaces = sorted((port.reserve_space(nbytes, _PAGE), nbytes) for nbytes in sizes)
    assert [address % (2 * MIB) for address, _ in spaces] == [0, 0]
    assert spaces[0][0] + spaces[0][1] <= spaces[1][0]
    expect_memory(port, before)
    with pytest.raises(OutOfMemory) as caught:
        port.reserve_space(1 << 62, _PAGE)
    assert (caught.value.wanted, caught.value.free) == (1 << 62, free)
    for address, _ in spaces:
        port.release_space(address)


@needs(Growable)
def test_commit_and_decommit_accept_any_page_ranges(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    space = port.reserve_space(8 * _PAGE, _PAGE)
    free, _ = port.memory_info()
    port.commit(space, 3 * _PAGE)
    port.commit(space + 5 * _PAGE, _PAGE)
    port.commit(space + 3 * _PAGE, 2 * _PAGE)
    expect_memory(port, (free - 6 * _PAGE, total))
    port.decommit(space + _PAGE, 4 * _PAGE)
    expect_memory(port, (free - 2 * _PAGE, total))
    port.decommit(space, _PAGE)
    port.decommit(space + 5 * _PAGE, _PAGE)
    expect_memory(port, (free, total))
    port.release_space(space)


@needs(Growable)
def test_commit_and_decommit_are_idempotent(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    space = port.reserve_space(8 * _PAGE, _PAGE)
    for address, nbytes in [(space, _PAGE), (space + 2 * _PAGE, _PAGE), (space, 4 * _PAGE), (space, 4 * _PAGE)]:
        port.commit(address, nbytes)
    expect_memory(port, (free - 4 * _PAGE, total))
    for address, nbytes in [(space + _PAGE, _PAGE), (space, 4 * _PAGE), (space, 8 * _PAGE)]:
        port.decommit(address, nbytes)
    expect_memory(port, (free, total))
    port.release_space(space)


@needs(Growable)
def test_commit_is_all_or_nothing(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    page = -(-free // _PAGE) * _PAGE
    space = port.reserve_space(2 * page, page)
    with pytest.raises(OutOfMemory) as caught:
        port.commit(space, 2 * page)
    assert (caught.value.wanted, caught.value.free, caught.value.capacity) == (2 * page, free, total)
    assert caught.value.device
    expect_memory(port, (free, total))
    port.release_space(space)


@needs(Growable)
def test_growable_calls_reject_invalid_ranges(port: Port) -> None:
    assert isinstance(port, Growable)
    space, segment = port.reserve_space(4 * _PAGE, _PAGE), port.reserve(4 * _PAGE)
    released = port.reserve_space(_PAGE, _PAGE)
    port.release_space(released)
    before = port.memory_info()
    for call in (port.commit, port.decommit):
        for address, nbytes in [
            (space + 512, _PAGE),
            (space, _PAGE + 512),
            (space, 1),
            *((space, n) for n in BAD_SIZES),
        ]:
            with pytest.raises((ValueError, TypeError, DeviceError)):
                call(address, nbytes)
        for address in (space - _PAGE, space + 3 * _PAGE, released, segment, 0):
            with pytest.raises(DeviceError):
                call(address, 2 * _PAGE)
    for address in (space + _PAGE, released, segment, 0):
        with pytest.raises(DeviceError):
            port.release_space(address)
    with pytest.raises(DeviceError):
        port.release(space)
    for nbytes, page in [(_PAGE + 1, _PAGE), *((n, _PAGE) for n in BAD_SIZES), *((_PAGE, n) for n in BAD_SIZES)]:
        with pytest.raises((ValueError, TypeError)):
            port.reserve_space(nbytes, page)
    expect_memory(port, before)


@needs(Growable)
def test_release_space_with_committed_pages_raises(port: Port) -> None:
    assert isinstance(port, Growable)
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space + 3 * _PAGE, _PAGE)
    before = port.memory_info()
    with pytest.raises(WrongState):
        port.release_space(space)
    expect_memory(port, before)
    port.decommit(space + 3 * _PAGE, _PAGE)
    port.release_space(space)


@needs(Growable)
@needs_memory
def test_committed_pages_retain_data(port: Port) -> None:
    """Committing and decommitting neighbouring pages changes nothing."""
    assert isinstance(port, Growable)
    space, queue = port.reserve_space(8 * _PAGE, _PAGE), port.queue()
    port.commit(space, 4 * _PAGE)
    for i in range(4):
        queue.fill(space + i * _PAGE, i + 1, _PAGE)
    drain(queue)
    port.decommit(space + _PAGE, 2 * _PAGE)
    port.commit(space + 3 * _PAGE, 2 * _PAGE)
    target = ctypes.create_string_buffer(2 * _PAGE)
    queue.copy(ctypes.addressof(target), space, _PAGE)
    queue.copy(ctypes.addressof(target) + _PAGE, space + 3 * _PAGE, _PAGE)
    drain(queue)
    assert target.raw == b"\x01" * _PAGE + b"\x04" * _PAGE


@needs(Growable)
@needs_memory
def test_recommitted_pages_are_zero(port: Port) -> None:
    assert isinstance(port, Growable)
    if not port.props.zero_pages:
        pytest.skip("the contents of new memory of this device are undefined")
    space = port.reserve_space(2 * _PAGE, _PAGE)
    for value in (7, 9):
        port.commit(space, 2 * _PAGE)
        assert ctypes.string_at(space, 2 * _PAGE) == bytes(2 * _PAGE)
        ctypes.memset(space, value, 2 * _PAGE)
        port.decommit(space, 2 * _PAGE)


@needs(Growable)
def test_concurrent_commit_and_decommit(port: Port) -> None:
    assert isinstance(port, Growable)
    growable: Growable = port
    before = port.memory_info()
    space = port.reserve_space(64 * _PAGE, _PAGE)

    def commit_and_decommit(i: int) -> None:
        for _ in range(20):
            growable.commit(space + i * 8 * _PAGE, 8 * _PAGE)
            growable.decommit(space + i * 8 * _PAGE, 5 * _PAGE)
            growable.decommit(space + (i * 8 + 5) * _PAGE, 3 * _PAGE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(commit_and_decommit, range(8)))
    expect_memory(port, before)
    port.release_space(space)


def _calls(port: Growable, space: int) -> list[Callable[[], object]]:
    return [
        lambda: port.reserve_space(_PAGE, _PAGE),
        lambda: port.commit(space, _PAGE),
        lambda: port.decommit(space, _PAGE),
        lambda: port.release_space(space),
    ]


@needs(Growable)
def test_closed_port_rejects_growable_calls(port: Port) -> None:
    assert isinstance(port, Growable)
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space, _PAGE)
    port.close()
    for call in _calls(port, space):
        with pytest.raises(WrongState):
            call()


@needs(Growable, SurvivesFork)
def test_forked_child_changes_its_own_pages(port: Port) -> None:
    assert isinstance(port, Growable)
    growable: Growable = port
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space, _PAGE)
    before = port.memory_info()

    def check() -> None:
        assert isinstance(port, SurvivesFork)
        port.after_fork_in_child()
        growable.commit(space + _PAGE, _PAGE)
        growable.decommit(space, 2 * _PAGE)
        growable.release_space(space)
        growable.release_space(growable.reserve_space(_PAGE, _PAGE))

    assert run_in_child(check) == ""
    expect_memory(port, before)
    port.decommit(space, _PAGE)
    port.release_space(space)
