"""Fixtures of `forebay.testing.plugin` that stand in for a device around a test, and what may be checked meanwhile."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

import forebay
from forebay.backends.emulated.memory_budget import watch
from forebay.runtime.allocator.oom_message import holders
from forebay.runtime.base import lazy_init
from forebay.runtime.devices.current import opened_for
from forebay.runtime.lifecycle.emulation import Emulation

__all__ = ["EmulatedDevices", "emulated_cuda", "pytest_addoption", "pytest_runtest_makereport"]

_LEAKS, _GUARD = "--forebay-leaks", "--forebay-guard"
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forebay")
    group.addoption(
        _LEAKS, action="store_true", help="fail tests after which memory of an emulated device is in use, and say whose"
    )
    group.addoption(
        _GUARD, action="store_true", help="end the run where a test touches an emulated device's memory on the host"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes which tests have failed: their traceback keeps what they had."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture
def emulated_cuda(request: pytest.FixtureRequest) -> Iterator[EmulatedDevices]:
    """An emulated H200 is `cuda:0` during the test. Call it for others: `emulated_cuda(count=2, profile="a100")`.

    `@pytest.mark.parametrize("emulated_cuda", [{"count": 2}], indirect=True)` says so from outside.
    """
    with ExitStack() as steps:
        devices = EmulatedDevices("cuda", request, steps)
        devices(**getattr(request, "param", {}))
        yield devices
        devices.end()


class EmulatedDevices:
    """The emulation around a test. A call ends the one that runs, and begins another."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, steps: ExitStack) -> None:
        self.kind = kind
        self._config = request.config
        self._node = request.node
        self._steps = steps
        self._emulation: Emulation | None = None
        self._looking = self._config.getoption(_LEAKS, default=False)
        self._tells = False
        steps.callback(self._stop)

    def __call__(
        self, count: int = 1, profile: str | None = None, memory: int | str | None = None, guard: bool | None = None
    ) -> Emulation:
        """As `forebay.emulate`; `guard` is on without a word where the run has --forebay-guard."""
        self._stop()
        if guard is None:
            guard = self._config.getoption(_GUARD, default=False)
        if guard:
            self._tell_on_terminal()
        self._emulation = forebay.emulate(self.kind, count, profile, memory, guard=guard)
        if self._looking:
            lazy_init.of(self.kind).call(self._record)
        return self._emulation

    def end(self) -> None:
        """Stop; the test fails where --forebay-leaks was given and it leaves memory in use."""
        found = self._leaks() if self._looking and not self._node.stash.get(_failed, False) else []
        self._stop()
        if found:
            pytest.fail("\n".join(["the test leaves device memory in use:", *found]), pytrace=False)

    def _leaks(self) -> list[str]:
        if not lazy_init.of(self.kind).done:
            return []
        gc.collect()
        lines = []
        for index in range(forebay.device_count(self.kind)):
            name = f"{self.kind}:{index}"
            if forebay.memory.memory_allocated(name):
                lines += [name, *holders(forebay.memory.snapshot(name))]
        return lines

    def _record(self) -> None:
        """When the kind is used first: from then on it is known which line allocated what."""
        for index in range(forebay.device_count(self.kind)):
            opened = opened_for(f"{self.kind}:{index}")
            forebay.memory.record_history(1, context="state", device=opened.device)

    def _stop(self) -> None:
        if self._emulation is None:
            return
        queued = lazy_init.of(self.kind).queued
        queued[:] = [each for each in queued if each[0] != self._record]
        self._emulation.stop()
        self._emulation = None

    def _tell_on_terminal(self) -> None:
        """Where pytest captures standard error, what is told by a dying process would be lost."""
        if self._tells:
            return
        self._tells = True
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else ExitStack():
            descriptor = os.dup(2)
        before = watch.descriptor
        watch.descriptor = descriptor

        def back() -> None:
            watch.descriptor = before
            os.close(descriptor)

        self._steps.callback(back)
        self._steps.callback(self._stop)
