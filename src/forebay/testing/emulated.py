"""The pytest fixture `emulated_cuda`, with its memory-leak check and host-access guard."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import forebay
from forebay.backends.emulated.memory_budget import guard_reporter
from forebay.runtime.allocator.oom_explanation import largest_holders
from forebay.runtime.base import lazy_init
from forebay.runtime.devices.current import opened_for
from forebay.runtime.lifecycle.emulation import Emulation

__all__ = [
    "EmulatedDevices",
    "checks_leaks",
    "cuda_devices",
    "emulated_cuda",
    "has_failed",
    "leaks_of",
    "note_failure",
    "record_sites",
]

_LEAKS, _GUARD = "--forebay-leaks", "--forebay-guard"
_failed = pytest.StashKey[bool]()


def note_failure(item: pytest.Item) -> None:
    """Exempt a failed test from the leak check: its traceback keeps local variables alive.

    Parameters
    ----------
    item : pytest.Item
        The test.
    """
    item.stash[_failed] = True


def has_failed(item: pytest.Item) -> bool:
    """Return True for a test that has failed.

    Parameters
    ----------
    item : pytest.Item
        The test.
    """
    return item.stash.get(_failed, False)


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
    yield from cuda_devices(request)


def cuda_devices(request: pytest.FixtureRequest) -> Iterator[EmulatedDevices]:
    """Emulate devices during a test: the function of the fixture `emulated_cuda`.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The request of pytest.

    Yields
    ------
    EmulatedDevices
        The emulation.
    """
    with ExitStack() as steps:
        devices = EmulatedDevices("cuda", request, steps)
        devices(**getattr(request, "param", {}))
        yield devices
        devices.end()


def checks_leaks(request: pytest.FixtureRequest) -> bool:
    """Return True if a test fails if it leaves memory of emulated devices allocated.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The request of a fixture.
    """
    return bool(request.config.getoption(_LEAKS, default=False))


def record_sites(kind: str) -> None:
    """Record from now on where the live blocks of all devices of a kind were allocated.

    Parameters
    ----------
    kind : str
        Device kind.
    """
    for index in range(forebay.device_count(kind)):
        opened = opened_for(f"{kind}:{index}")
        forebay.memory.record_history(1, context="state", device=opened.device)


def leaks_of(kind: str) -> list[str]:
    """Return the devices whose memory is allocated, and the lines that hold most; nothing of unused devices.

    Parameters
    ----------
    kind : str
        Device kind.
    """
    if not lazy_init.get(kind).done:
        return []
    gc.collect()
    lines = []
    for index in range(forebay.device_count(kind)):
        name = f"{kind}:{index}"
        if forebay.memory.memory_allocated(name):
            lines += [name, *largest_holders(forebay.memory.snapshot(name))]
    return lines


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
        self._checks_leaks = checks_leaks(request)
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
        leaks = leaks_of(self.kind) if self._checks_leaks and not has_failed(self._node) else []
        self._stop()
        if leaks:
            pytest.fail("\n".join(["the test leaves device memory in use:", *leaks]), pytrace=False)

    def _record_history(self) -> None:
        """Record allocation sites from the first use of the kind on."""
        record_sites(self.kind)

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
