"""Descriptors kept for the report under low limits, after use by the program, and in a fork."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from forebay.commands.reserved_descriptors import ReservedDescriptors


@pytest.fixture
def limit():
    """A function that lowers the limit of descriptors during the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_descriptors() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists()}


@pytest.fixture
def reserve():
    """A function that reserves descriptors and returns their numbers; they are released at the end."""
    made = []

    def call() -> tuple[ReservedDescriptors, set[int]]:
        before = open_descriptors()
        made.append(ReservedDescriptors())
        return made[-1], open_descriptors() - before

    yield call
    for each in made:
        each.release()


def test_reserved_numbers_are_high_and_free_after_release(reserve):
    reserved, numbers = reserve()
    assert len(numbers) == 8
    assert min(numbers) >= 210
    reserved.release()
    reserved.release()
    assert not open_descriptors() & numbers


def test_numbers_are_low_if_the_limit_is_low(reserve, limit):
    limit(150)
    _, numbers = reserve()
    assert len(numbers) == 8
    assert max(numbers) < 150


def test_as_many_as_the_limit_permits_are_reserved(reserve, limit):
    free = [os.dup(0) for _ in range(4)]
    for each in free:
        os.close(each)
    limit(free[-1] + 1)
    _, numbers = reserve()
    assert numbers >= set(free[1:])  # the first one was open while the others were made
    assert len(numbers) < 8


def test_nothing_is_reserved_without_a_free_descriptor(reserve, limit):
    limit(0)
    made = ReservedDescriptors()
    limit(256)
    assert made._numbers == []
    made.release()


def test_descriptor_that_the_program_uses_for_a_file_stays_open(reserve, tmp_path):
    reserved, numbers = reserve()
    used, closed = sorted(numbers)[:2]
    os.close(closed)
    with (tmp_path / "file").open("w") as file:
        os.dup2(file.fileno(), used)
    reserved.release()
    assert open_descriptors() & numbers == {used}
    os.close(used)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_child_has_none(reserve):
    _, numbers = reserve()
    if (child := os.fork()) == 0:
        os._exit(len(open_descriptors() & numbers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert numbers <= open_descriptors()
