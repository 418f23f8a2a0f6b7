"""The pytest fixture `emulated_cuda`, with its memory-leak check and host-access guard."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest

import forebay
from forebay.backends.emulated.memory_budget import guard_reporter
from forebay.runtime.allocator.oom_explanation import largest_holders
from forebay.runtime.base import lazy_init
from forebay.runtime.devices.current import opened_for
from forebay.runtime.lifecycle.emulation import Emulation

__all__ = ["EmulatedDevices", "emulated_cuda", "pytest_addoption", "pytest_runtest_makereport"]

_LEAKS, _GUARD = "--forebay-leaks", "--forebay-guard"
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--forebay-leaks` and `--forebay-guard`.

    Parameters
    ----------
    parser : pytest.Parser
        The command-line parser of pytest.
    """
    group = parser.getgroup("forebay")
    group.addoption(
        _LEAKS,
        action="store_true",
        help="fail tests that leave memory of an emulated device allocated, and list the allocating lines",
    )
    group.addoption(
        _GUARD,
        action="store_true",
        help="end the run if the host accesses emulated device memory outside queued work",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark failed tests, which are exempt from the leak check: their tracebacks keep local variables alive.

    Parameters
    ----------
    item : pytest.Item
        The test.
    """
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture
def emulated_cuda(request: pytest.FixtureRequest) -> Iterator[EmulatedDevices]:
    """Emulate one H200 as `cuda:0` during the test.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The request of pytest. With indirect parametrization its `param` holds keyword arguments of `EmulatedDevices`,
        as in `@pytest.mark.parametrize("emulated_cuda", [{"count": 2}], indirect=True)`.

    Yields
    ------
    EmulatedDevices
        The emulation. Call it to emulate other devices: `emulated_cuda(count=2, profile="a100")`.

    Notes
    -----
    Each test gets new devices without the streams, seeds or statistics of earlier tests. With `--forebay-leaks` the
    test fails if it leaves device memory allocated; with `--forebay-guard` an access of the host to device memory
    outside queued work ends the run.
    """
    with ExitStack() as steps:
        devices = EmulatedDevices("cuda", request, steps)
        devices(**getattr(request, "param", {}))
        yield devices
        devices.end()


class EmulatedDevices:
    """The emulation of a test, replaced by another one when it is called.

    Parameters
    ----------
    kind : str
        Device kind to emulate.
    request : pytest.FixtureRequest
        The request of the test's fixture.
    steps : contextlib.ExitStack
        Stack that stops the emulation when it is closed.
    """

    def __init__(self, kind: str, request: pytest.FixtureRequest, steps: ExitStack) -> None:
        self.kind = kind
        self._config = request.config
        self._node = request.node
        self._steps = steps
        self._emulation: Emulation | None = None
        self._checks_leaks = self._config.getoption(_LEAKS, default=False)
        self._reports_to_terminal = False
        steps.callback(self._stop)

    def __call__(
        self, count: int = 1, profile: str | None = None, memory: int | str | None = None, guard: bool | None = None
    ) -> Emulation:
        """Stop the current emulation and start another.

        Parameters
        ----------
        count : int, default 1
            Number of devices.
        profile : str, optional
            Name of the emulated hardware; "h200" by default.
        memory : int or str, optional
            Memory of each device: bytes, or a size such as "4GiB"; that of the profile by default.
        guard : bool, optional
            Whether to forbid the host to access device memory outside queued work. By default only with
            `--forebay-guard`.

        Returns
        -------
        Emulation
            As `forebay.emulate` returns it.

        Raises
        ------
        ValueError
            If an argument is invalid.
        """
        self._stop()
        if guard is None:
            guard = self._config.getoption(_GUARD, default=False)
        if guard:
            self._report_to_terminal()
        self._emulation = forebay.emulate(self.kind, count, profile, memory, guard=guard)
        if self._checks_leaks:
            lazy_init.get(self.kind).call(self._record_history)
        return self._emulation

    def end(self) -> None:
        """Stop the emulation. With `--forebay-leaks`, fail the test if device memory is still allocated."""
        leaks = self._leaks() if self._checks_leaks and not self._node.stash.get(_failed, False) else []
        self._stop()
        if leaks:
            pytest.fail("\n".join(["the test leaves device memory in use:", *leaks]), pytrace=False)

    def _leaks(self) -> list[str]:
        if not lazy_init.get(self.kind).done:
            return []
        gc.collect()
        lines = []
        for index in range(forebay.device_count(self.kind)):
            name = f"{self.kind}:{index}"
            if forebay.memory.memory_allocated(name):
                lines += [name, *largest_holders(forebay.memory.snapshot(name))]
        return lines

    def _record_history(self) -> None:
        """Record allocation sites from the first use of the kind on."""
        for index in range(forebay.device_count(self.kind)):
            opened = opened_for(f"{self.kind}:{index}")
            forebay.memory.record_history(1, context="state", device=opened.device)

    def _stop(self) -> None:
        if self._emulation is None:
            return
        queued = lazy_init.get(self.kind).queued
        queued[:] = [each for each in queued if each[0] != self._record_history]
        self._emulation.stop()
        self._emulation = None

    def _report_to_terminal(self) -> None:
        """Send the guard's report to the terminal: text that pytest captured is lost when the process is killed."""
        if self._reports_to_terminal:
            return
        self._reports_to_terminal = True
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else ExitStack():
            descriptor = os.dup(2)
        before = guard_reporter.descriptor
        guard_reporter.descriptor = descriptor

        def restore() -> None:
            guard_reporter.descriptor = before
            os.close(descriptor)

        self._steps.callback(restore)
        self._steps.callback(self._stop)
