"""The pytest fixture `emulated_torch`: PyTorch on an emulated GPU during a test, with a limit for its peak memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import forebay
from forebay._base.byte_sizes import format_bytes, parse_bytes
from forebay._base.outside_memory import NOTHING, OutsideMemory, outside_memory
from forebay._base.verdicts import Assumption, Ending, How, Judgement, ProcessEvents, Verdict, judge
from forebay.backends import default_profile
from forebay.errors import Unsupported
from forebay.interop.torch.processes import assumed_values, unread_values
from forebay.interop.torch.session import TorchSession
from forebay.testing.emulated import checks_leaks, has_failed, leaks_of, record_sites

__all__ = ["EmulatedTorch", "emulated_torch", "torch_devices"]


class EmulatedTorch:
    """PyTorch on emulated devices during a test.

    Parameters
    ----------
    session : TorchSession
        The patch of PyTorch and the ledger of its memory.
    outside : OutsideMemory
        What is outside the allocator of the device.
    """

    def __init__(self, session: TorchSession, outside: OutsideMemory = NOTHING) -> None:
        self._session = session
        self._outside = outside

    @property
    def peak_allocated(self) -> int:
        """The peak of the bytes in blocks, of the device that allocated most."""
        return max((each.peak_allocated for each in self._session.results()), default=0)

    @property
    def peak_reserved(self) -> int:
        """The peak of the bytes in segments, of the device that reserved most."""
        return max((each.peak_reserved for each in self._session.results()), default=0)

    @property
    def verdict(self) -> Verdict:
        """The verdict about what the test has done so far, as if it had ended without an error."""
        return self._judge().verdict

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The lines that received assumed values, in the mode "shapes"."""
        return assumed_values.found()

    def assert_fits(self, *, tight: bool = True) -> None:
        """Fail the test unless what it has done so far fits.

        Parameters
        ----------
        tight : bool, default True
            Whether it may leave so little free that what is outside the allocator decides.
        """
        found = self._judge()
        if not found.verdict.fits or (found.verdict is Verdict.TIGHT and not tight):
            pytest.fail(" ".join([f"{found.text}.".capitalize(), *found.reasons]), pytrace=False)

    def _judge(self) -> Judgement:
        workspaces = self._session.most_workspaces()
        devices = tuple(
            replace(each.events, outside=self._outside, workspaces=workspaces.get(each.index, 0))
            for each in self._session.results()
        )
        unread = unread_values.lines()
        process = ProcessEvents(os.getpid(), Ending(How.FINISHED), devices, unread=unread, is_main=True)
        return judge([process], devices)

    def assert_peak(self, at_most: int | str) -> None:
        """Fail the test if a device has had more memory allocated, and say what held it.

        Also fail it if the peak is not known, because no device memory was used, or a value was needed that is not
        computed, whether or not the test caught the error.

        Parameters
        ----------
        at_most : int or str
            The largest peak: bytes, or a size such as "2GiB".
        """
        found = self._judge()
        if found.verdict in (Verdict.DID_NOT_FINISH, Verdict.NO_DEVICE_MEMORY):
            reasons = " ".join([f"{found.text}.", *found.reasons])
            pytest.fail(f"the peak is not known: {reasons}", pytrace=False)
        limit = parse_bytes(at_most) if isinstance(at_most, str) else at_most
        lines = []
        for use in self._session.results():
            if use.peak_allocated > limit:
                lines.append(
                    f"cuda:{use.index}: the peak is {format_bytes(use.peak_allocated)}, "
                    f"{format_bytes(use.peak_allocated - limit)} more than {format_bytes(limit)}"
                )
                for title, holders in (("", use.categories), ("by line: ", use.lines[:5])):
                    lines += [f"  {title}{format_bytes(each.nbytes)} {each.name}" for each in holders]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)


@pytest.fixture
def emulated_torch(request: pytest.FixtureRequest) -> Iterator[EmulatedTorch]:
    """Let PyTorch use an emulated GPU during the test. Without PyTorch, the test is skipped.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The request of pytest. The marker `emulated_torch` chooses the device, the mode ("compute", "shapes", "strict")
        and the largest peak: `@pytest.mark.emulated_torch(profile="rtx_4090", mode="shapes", peak="20GiB")`.

    Yields
    ------
    EmulatedTorch
        Its verdict, its peaks, and assertions about them.

    Notes
    -----
    With `--forebay-leaks` the test fails if it leaves device memory allocated.
    """
    yield from torch_devices(request)


def torch_devices(request: pytest.FixtureRequest) -> Iterator[EmulatedTorch]:
    """Let PyTorch use an emulated GPU during a test: the function of the fixture `emulated_torch`.

    Parameters
    ----------
    request : pytest.FixtureRequest
        The request of pytest.

    Yields
    ------
    EmulatedTorch
        Its verdict, its peaks, and assertions about them.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    marker = request.node.get_closest_marker("emulated_torch")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    mode, peak = options.pop("mode", "compute"), options.pop("peak", None)
    profile = options.get("profile") or default_profile("cuda")
    outside = outside_memory(profile, *(_nbytes(options.get(name)) for name in ("memory", "reserve")))
    options["reserve"] = outside.low
    session = TorchSession(mode)
    unread_values.clear()
    with forebay.emulate("cuda", **options):
        try:
            session.start()
        except Unsupported as error:
            pytest.skip(str(error))
        try:
            found = EmulatedTorch(session, outside)
            if checks_leaks(request):
                record_sites("cuda")
            yield found
            if peak is not None:
                found.assert_peak(peak)
            if checks_leaks(request) and not has_failed(request.node):
                _check_leaks()
        finally:
            session.stop()


def _check_leaks() -> None:
    """Fail the test if device memory is allocated, apart from the workspaces that PyTorch keeps for libraries."""
    import torch

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - the only name
    if leaks := leaks_of("cuda"):
        pytest.fail("\n".join(["the test leaves device memory in use:", *leaks]), pytrace=False)


def _nbytes(size: int | str | None) -> int | None:
    return parse_bytes(size) if isinstance(size, str) else size
