"""Growable: address space whose pages get memory later, and lose it again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.errors import DeviceError, Forked, OutOfMemory, WrongState
from forebay.spi import Growable, Port, Reopens
from forebay.testing.conformance.scenes import BAD_SIZES, MIB, drain, in_child, needs, not_imaginary

__all__ = [
    "test_a_closed_port_grows_no_more",
    "test_a_forked_child_leaves_the_pages_alone",
    "test_a_space_that_has_memory_is_not_released",
    "test_address_space_is_no_memory",
    "test_memory_that_comes_again_is_like_new",
    "test_only_whole_pages_of_a_space_come_and_go",
    "test_pages_come_and_go_in_any_portions",
    "test_pages_that_are_there_keep_what_they_hold",
    "test_several_threads_grow_one_space",
    "test_to_go_a_way_twice_is_to_go_it_once",
    "test_what_does_not_fit_does_not_come_in_part",
]

_PAGE = 2 * MIB


@needs(Growable)
def test_address_space_is_no_memory(port: Port) -> None:
    assert isinstance(port, Growable)
    before = free, total = port.memory_info()
    sizes = [-(-total // _PAGE + 1) * _PAGE, 20 * MIB]
    spaces = sorted((port.reserve_space(nbytes, _PAGE), nbytes) for nbytes in sizes)
    assert [address % (2 * MIB) for address, _ in spaces] == [0, 0]
    assert spaces[0][0] + spaces[0][1] <= spaces[1][0]
    assert port.memory_info() == before
    with pytest.raises(OutOfMemory) as caught:
        port.reserve_space(1 << 62, _PAGE)
    assert (caught.value.wanted, caught.value.free) == (1 << 62, free)
    for address, _ in spaces:
        port.release_space(address)


@needs(Growable)
def test_pages_come_and_go_in_any_portions(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    space = port.reserve_space(8 * _PAGE, _PAGE)
    free, _ = port.memory_info()
    port.commit(space, 3 * _PAGE)
    port.commit(space + 5 * _PAGE, _PAGE)
    port.commit(space + 3 * _PAGE, 2 * _PAGE)
    assert port.memory_info() == (free - 6 * _PAGE, total)
    port.decommit(space + _PAGE, 4 * _PAGE)
    assert port.memory_info() == (free - 2 * _PAGE, total)
    port.decommit(space, _PAGE)
    port.decommit(space + 5 * _PAGE, _PAGE)
    assert port.memory_info() == (free, total)
    port.release_space(space)


@needs(Growable)
def test_to_go_a_way_twice_is_to_go_it_once(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    space = port.reserve_space(8 * _PAGE, _PAGE)
    for address, nbytes in [(space, _PAGE), (space + 2 * _PAGE, _PAGE), (space, 4 * _PAGE), (space, 4 * _PAGE)]:
        port.commit(address, nbytes)
    assert port.memory_info() == (free - 4 * _PAGE, total)
    for address, nbytes in [(space + _PAGE, _PAGE), (space, 4 * _PAGE), (space, 8 * _PAGE)]:
        port.decommit(address, nbytes)
    assert port.memory_info() == (free, total)
    port.release_space(space)


@needs(Growable)
def test_what_does_not_fit_does_not_come_in_part(port: Port) -> None:
    assert isinstance(port, Growable)
    free, total = port.memory_info()
    page = -(-free // _PAGE) * _PAGE
    space = port.reserve_space(2 * page, page)
    with pytest.raises(OutOfMemory) as caught:
        port.commit(space, 2 * page)
    assert (caught.value.wanted, caught.value.free, caught.value.capacity) == (2 * page, free, total)
    assert caught.value.device
    assert port.memory_info() == (free, total)
    port.release_space(space)


@needs(Growable)
def test_only_whole_pages_of_a_space_come_and_go(port: Port) -> None:
    assert isinstance(port, Growable)
    space, segment = port.reserve_space(4 * _PAGE, _PAGE), port.reserve(4 * _PAGE)
    gone = port.reserve_space(_PAGE, _PAGE)
    port.release_space(gone)
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
        for address in (space - _PAGE, space + 3 * _PAGE, gone, segment, 0):
            with pytest.raises(DeviceError):
                call(address, 2 * _PAGE)
    for address in (space + _PAGE, gone, segment, 0):
        with pytest.raises(DeviceError):
            port.release_space(address)
    with pytest.raises(DeviceError):
        port.release(space)
    for nbytes, page in [(_PAGE + 1, _PAGE), *((n, _PAGE) for n in BAD_SIZES), *((_PAGE, n) for n in BAD_SIZES)]:
        with pytest.raises((ValueError, TypeError)):
            port.reserve_space(nbytes, page)
    assert port.memory_info() == before


@needs(Growable)
def test_a_space_that_has_memory_is_not_released(port: Port) -> None:
    assert isinstance(port, Growable)
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space + 3 * _PAGE, _PAGE)
    before = port.memory_info()
    with pytest.raises(WrongState):
        port.release_space(space)
    assert port.memory_info() == before
    port.decommit(space + 3 * _PAGE, _PAGE)
    port.release_space(space)


@needs(Growable)
@not_imaginary
def test_pages_that_are_there_keep_what_they_hold(port: Port) -> None:
    """Whatever comes or goes beside them."""
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
@not_imaginary
def test_memory_that_comes_again_is_like_new(port: Port) -> None:
    assert isinstance(port, Growable)
    if not port.props.zero_pages:
        pytest.skip("what new memory of this device holds is anybody's guess")
    space = port.reserve_space(2 * _PAGE, _PAGE)
    for value in (7, 9):
        port.commit(space, 2 * _PAGE)
        assert ctypes.string_at(space, 2 * _PAGE) == bytes(2 * _PAGE)
        ctypes.memset(space, value, 2 * _PAGE)
        port.decommit(space, 2 * _PAGE)


@needs(Growable)
def test_several_threads_grow_one_space(port: Port) -> None:
    assert isinstance(port, Growable)
    growable: Growable = port
    before = port.memory_info()
    space = port.reserve_space(64 * _PAGE, _PAGE)

    def use(i: int) -> None:
        for _ in range(20):
            growable.commit(space + i * 8 * _PAGE, 8 * _PAGE)
            growable.decommit(space + i * 8 * _PAGE, 5 * _PAGE)
            growable.decommit(space + (i * 8 + 5) * _PAGE, 3 * _PAGE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert port.memory_info() == before
    port.release_space(space)


def _uses(port: Growable, space: int) -> list[Callable[[], object]]:
    return [
        lambda: port.reserve_space(_PAGE, _PAGE),
        lambda: port.commit(space, _PAGE),
        lambda: port.decommit(space, _PAGE),
        lambda: port.release_space(space),
    ]


@needs(Growable)
def test_a_closed_port_grows_no_more(port: Port) -> None:
    assert isinstance(port, Growable)
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space, _PAGE)
    port.close()
    for use in _uses(port, space):
        with pytest.raises(WrongState):
            use()


@needs(Growable, Reopens)
def test_a_forked_child_leaves_the_pages_alone(port: Port) -> None:
    assert isinstance(port, Growable)
    growable: Growable = port
    space = port.reserve_space(4 * _PAGE, _PAGE)
    port.commit(space, _PAGE)

    def check() -> None:
        assert isinstance(port, Reopens)
        port.abandon()
        for use in _uses(growable, space):
            with pytest.raises(Forked):
                use()

    assert in_child(check) == ""
    port.decommit(space, _PAGE)
    port.release_space(space)
