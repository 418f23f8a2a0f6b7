"""Expandable address space of the CPU device beyond the contract: resident memory, mappings and interrupted calls."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from pathlib import Path

import pytest

from forebay.backends.common import mmap as common_mmap
from forebay.backends.host import address_space
from forebay.backends.host.driver import HostPort
from forebay.errors import DeviceError, OutOfMemory
from forebay.spi import DeviceProps
from forebay.testing.conformance.helpers import run_in_child

MIB = 1 << 20
PAGE = 2 * MIB
TOTAL = 64 * MIB
linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="mappings are described in /proc")


@pytest.fixture
def port():
    port = HostPort(DeviceProps("cpu", 0, "test", TOTAL, host_visible=True))
    yield port
    port.close()


@pytest.fixture
def space(port):
    return port.reserve_space(TOTAL, PAGE)


def mappings(low: int, high: int) -> list[int]:
    """Return the resident bytes of each mapping that overlaps a range."""
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start < high and low < end
        elif inside and first == "Rss:":
            found.append(int(rest[0]) << 10)
    return found


def resident(space: int) -> int:
    return sum(mappings(space, space + TOTAL))


@linux
def test_pages_are_resident_only_between_touch_and_decommit(port, space):
    assert resident(space) == 0
    port.commit(space, 16 * MIB)
    assert resident(space) == 0
    ctypes.memset(space, 1, 16 * MIB)
    assert resident(space) == 16 * MIB
    port.decommit(space + 4 * MIB, 8 * MIB)
    assert resident(space) == 8 * MIB
    port.decommit(space, 16 * MIB)
    assert resident(space) == 0
    port.release_space(space)
    assert mappings(space, space + TOTAL) == []


@linux
def test_adjacent_pages_form_one_mapping(port, space):
    """A process may have 65,530 mappings."""
    for i in range(16):
        port.commit(space + i * PAGE, PAGE)
        ctypes.memset(space + i * PAGE, 1, PAGE)
    assert len(mappings(space, space + TOTAL)) <= 2
    for i in range(16):
        port.decommit(space + i * PAGE, PAGE)
    assert len(mappings(space, space + TOTAL)) == 1


@linux
def test_closed_port_unmaps_its_address_space(port, space):
    port.commit(space, PAGE)
    port.close()
    assert mappings(space, space + TOTAL) == []


def test_failed_commit_has_no_effect(port, space, monkeypatch):
    def refuse(address, nbytes):
        common_mmap.commit_pages(address, nbytes // 2)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "mprotect")

    port.commit(space, PAGE)
    ctypes.memset(space, 7, PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(address_space, "commit_pages", refuse)
        with pytest.raises(OutOfMemory, match="the system has no memory: mprotect failed") as caught:
            port.commit(space, 8 * PAGE)
    assert (caught.value.code, caught.value.wanted, caught.value.reserved) == (errno.ENOMEM, 8 * PAGE, PAGE)
    assert port.memory_info() == (TOTAL - PAGE, TOTAL)
    assert ctypes.string_at(space, PAGE) == b"\x07" * PAGE
    port.commit(space, 8 * PAGE)
    assert ctypes.string_at(space + PAGE, 7 * PAGE) == bytes(7 * PAGE)


def test_failed_decommit_has_no_effect(port, space, monkeypatch):
    def refuse(address, nbytes, *, charged):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "mmap")

    port.commit(space, 2 * PAGE)
    ctypes.memset(space, 7, 2 * PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(address_space, "decommit_pages", refuse)
        with pytest.raises(DeviceError, match=r"2\.00 MiB of memory cannot be decommitted: mmap"):
            port.decommit(space, PAGE)
    assert port.memory_info() == (TOTAL - 2 * PAGE, TOTAL)
    assert ctypes.string_at(space, PAGE) == b"\x07" * PAGE


def test_failed_release_has_no_effect(port, space, monkeypatch):
    def refuse(address, nbytes):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "munmap")

    with monkeypatch.context() as patch:
        patch.setattr(address_space, "unmap_memory", refuse)
        with pytest.raises(DeviceError, match="the address space cannot be released: munmap"):
            port.release_space(space)
    port.commit(space, PAGE)
    port.decommit(space, PAGE)
    port.release_space(space)


@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize("call", ["commit", "decommit"])
def test_repeating_an_interrupted_call_corrects_its_effect(port, space, monkeypatch, call, executed):
    function = {"commit": "commit_pages", "decommit": "decommit_pages"}[call]
    original = getattr(common_mmap, function)

    def interrupted(*where, **options):
        if executed:
            original(*where, **options)
        raise KeyboardInterrupt

    for repair, free in ((port.commit, TOTAL - 4 * PAGE), (port.decommit, TOTAL)):
        port.commit(space, PAGE)
        with monkeypatch.context() as patch:
            patch.setattr(address_space, function, interrupted)
            with pytest.raises(KeyboardInterrupt):
                getattr(port, call)(space, 4 * PAGE)
        assert port.memory_info()[0] <= TOTAL - PAGE  # counts at least what may be committed
        repair(space, 4 * PAGE)
        assert port.memory_info()[0] == free
        if repair == port.commit:
            ctypes.memset(space, 1, 4 * PAGE)


def test_page_size_must_be_a_multiple_of_the_systems(port):
    with pytest.raises(ValueError, match=f"page must be a multiple of the system's {mmap.PAGESIZE} bytes"):
        port.reserve_space(4 * mmap.PAGESIZE, mmap.PAGESIZE // 2)
    with pytest.raises(ValueError, match="nbytes must be a multiple of page"):
        port.reserve_space(4 * mmap.PAGESIZE, 3 * mmap.PAGESIZE)
    space = port.reserve_space(4 * mmap.PAGESIZE, mmap.PAGESIZE)
    port.commit(space + mmap.PAGESIZE, mmap.PAGESIZE)
    ctypes.memset(space + mmap.PAGESIZE, 1, mmap.PAGESIZE)


def max_mappings() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:
        return 1 << 30


@pytest.mark.slow
@pytest.mark.skipif(max_mappings() > 100_000, reason="this system allows more mappings than a test can make")
def test_process_at_its_limit_of_mappings_can_decommit():
    """Commits fail, all decommits succeed, and other pages keep their contents."""

    def check() -> None:
        page, whole = mmap.PAGESIZE, 10_000
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        port = HostPort(DeviceProps("cpu", 0, "test", 1 << 40, host_visible=True))
        space = port.reserve_space(300_000 * page, page)
        port.commit(space, whole * page)
        ctypes.memset(space, 7, whole * page)
        separate = iter(range(whole + 1, 300_000, 2))
        with pytest.raises(OutOfMemory, match="mprotect") as caught:
            deque((port.commit(space + i * page, page) for i in separate), maxlen=0)
        assert caught.value.reserved == (whole + (next(separate) - whole - 3) // 2) * page
        before = int(os.pread(statm, 100, 0).split()[1])
        for i in range(1, whole, 2):
            port.decommit(space + i * page, page)
        assert before - int(os.pread(statm, 100, 0).split()[1]) > 0.9 * whole / 2
        assert all(ctypes.string_at(space + i * page, page) == b"\x07" * page for i in range(0, 100, 2))
        port.decommit(space, 300_000 * page)
        assert port.memory_info() == (1 << 40, 1 << 40)
        port.release_space(space)

    assert run_in_child(check) == ""


def test_forked_child_has_its_own_copy(port, space):
    port.commit(space, PAGE)
    ctypes.memset(space, 7, PAGE)

    def check() -> None:
        port.after_fork_in_child()
        assert ctypes.string_at(space, PAGE) == b"\x07" * PAGE
        ctypes.memset(space, 8, PAGE)
        port.commit(space, 2 * PAGE)
        assert ctypes.string_at(space, PAGE + 1) == b"\x08" * PAGE + b"\x00"
        port.decommit(space, 2 * PAGE)

    assert run_in_child(check) == ""
    assert ctypes.string_at(space, PAGE) == b"\x07" * PAGE
