"""The memory of a training loop: why it ran out, the peak of each step, and on which other cards it would fit."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forebay import profiles, snapshot
from forebay._base.byte_sizes import format_bytes
from forebay._base.outside_memory import outside_memory
from forebay._base.temporary_folders import temporary_folder
from forebay._base.verdicts import Verdict
from forebay.errors import ForebayWarning, WrongState
from forebay.interop.torch.oom_recorder import OomRecorder, record_oom

if TYPE_CHECKING:
    from typing import Self

    from forebay.snapshot.replay.engine import History

__all__ = ["CardFit", "MemoryWatch", "StepPeak"]

_CARDS = ("t4", "l4", "rtx_4090", "a100", "h100")
_STEPS = 1000  # whose peaks are kept
_LINES = 12  # of an explanation, in the note of an exception


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peaks of a device in one step, in bytes."""

    step: int  #: number of the step, from 0
    device: int  #: index of the device
    allocated: int  #: bytes in blocks
    reserved: int  #: bytes in segments


@dataclass(frozen=True, slots=True)
class CardFit:
    """The answer for another card."""

    profile: str  #: the card
    verdict: Verdict | None  #: fits, tight or does not fit; None if only a run there would tell
    text: str  #: the verdict with its reason


class MemoryWatch:
    """A context manager around a training loop.

    If memory runs out, a snapshot and its explanation are written, and the explanation is added to the exception. At
    the end of a loop that did not fail, the largest peak and the cards on which it fits are printed on standard error.
    Without a GPU that PyTorch can use, it does nothing and warns.

    Parameters
    ----------
    folder : str or os.PathLike, default "forebay-oom"
        The folder of snapshots and explanations.
    cards : sequence of str, optional
        Profiles of the cards to answer for.
    entries : int, default 100_000
        Entries of PyTorch's memory history. If the loop has more, the answers for other cards are bounds.
    limit : int, default 8
        Number of snapshots to write in all.
    quiet : bool, default False
        Whether to print nothing at the end.

    Raises
    ------
    ValueError
        If a card is unknown, or `entries` or `limit` is invalid.

    Notes
    -----
    `step` resets PyTorch's peak statistics (`torch.cuda.reset_peak_memory_stats`), as a peak of a step cannot be
    measured otherwise.

    Examples
    --------
    >>> from forebay.interop.torch.training import MemoryWatch
    >>> with MemoryWatch(cards=["t4", "l4"]) as memory:  # doctest: +SKIP
    ...     for batch in batches:
    ...         train(batch)
    ...         memory.step()
    """

    def __init__(
        self, folder: str | os.PathLike[str] = "forebay-oom", *, cards: Sequence[str] = _CARDS, entries: int = 100_000,
        limit: int = 8, quiet: bool = False,
    ) -> None:  # fmt: skip
        self.cards: tuple[str, ...] = tuple(profiles.load(each).name for each in cards)
        self.steps: int = 0  #: completed steps
        self.largest: StepPeak | None = None  #: the step that reserved most
        self._peaks: deque[StepPeak] = deque(maxlen=_STEPS)
        self._options: dict[str, Any] = {"entries": entries, "limit": limit}
        self._folder, self._quiet = folder, quiet
        self._recorder: OomRecorder | None = None
        self._running = False
        self._torch: Any = None
        self._most_allocated = 0
        self._fits: tuple[CardFit, ...] = ()
        self._histories: dict[int, History | None] = {}

    @property
    def peaks(self) -> tuple[StepPeak, ...]:
        """The peaks of the last 1,000 steps and devices, oldest first."""
        return tuple(self._peaks)

    @property
    def why_not(self) -> str:
        """The reason why nothing is watched; "" if it is."""
        return "it was not started" if self._recorder is None else self._recorder.why_not

    @property
    def written(self) -> tuple[Path, ...]:
        """The snapshots of out-of-memory errors; the explanation of each has the suffix .txt."""
        return () if self._recorder is None else self._recorder.written

    @property
    def fits(self) -> tuple[CardFit, ...]:
        """The answers for other cards, at the end of a loop that did not fail."""
        return self._fits

    def start(self) -> None:
        """Begin to watch. Raises WrongState if it is watching."""
        if self._running:
            raise WrongState("the memory is being watched already")
        self._recorder = record_oom(self._folder, **self._options)
        self._running = True
        if not self._recorder.why_not:
            import torch

            self._torch = torch
            self._reset()

    def step(self) -> None:
        """End a step: note its peak."""
        if not self._running or self.why_not:
            return
        for index in self._used():
            allocated = self._torch.cuda.max_memory_allocated(index)
            peak = StepPeak(self.steps, index, allocated, self._torch.cuda.max_memory_reserved(index))
            self._peaks.append(peak)
            self._most_allocated = max(self._most_allocated, allocated)
            if self.largest is None or peak.reserved > self.largest.reserved:
                self.largest = peak
        self.steps += 1
        self._reset()

    def stop(self, error: BaseException | None = None) -> None:
        """End watching. Calling it again does nothing.

        Parameters
        ----------
        error : BaseException, optional
            The exception by which the loop ends. It gets a note if memory ran out.
        """
        if self._running and error is None and not self.why_not:
            self._end()
        elif self._running and error is not None and self.written:
            error.add_note(_note(self.written[-1]))
        self.cancel()

    def cancel(self) -> None:
        """End watching without an answer. Calling it again does nothing."""
        self._running = False
        if self._recorder is not None and not self._recorder.why_not:
            self._recorder.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(error)

    def report(self) -> str:
        """Return what is printed at the end."""
        if self.largest is None:
            return "forebay: no device memory was used"
        peak = self.largest
        sizes = f"{format_bytes(peak.allocated)} allocated and {format_bytes(peak.reserved)} reserved"
        first = f"forebay: the largest peak was {sizes} on cuda:{peak.device}, in step {peak.step}"
        width = max((len(each.profile) for each in self._fits), default=0)
        return "\n".join([first, *(f"  {each.profile:{width}}  {each.text}" for each in self._fits)])

    def _end(self) -> None:
        """Note what ran after the last step, and answer for other cards."""
        if self._used() and (self.steps == 0 or self._has_grown()):
            self.step()
        try:
            self._fits = tuple(self._fit(each) for each in self.cards) if self.largest is not None else ()
        except Exception as error:  # noqa: BLE001 -- of what PyTorch recorded; the loop has succeeded
            text = f"no answer for other cards: {type(error).__name__}: {error}"
            warnings.warn(text, ForebayWarning, stacklevel=3)
        if not self._quiet:
            print(self.report(), file=sys.stderr)  # noqa: T201 -- as documented

    def _has_grown(self) -> bool:
        return any(self._torch.cuda.max_memory_allocated(index) > self._most_allocated for index in self._used())

    def _used(self) -> list[int]:
        """Return the indices of devices on which memory was reserved in this step."""
        cuda = self._torch.cuda
        return [index for index in range(cuda.device_count()) if cuda.max_memory_reserved(index)]

    def _reset(self) -> None:
        for index in self._used():
            self._torch.cuda.reset_peak_memory_stats(index)

    def _fit(self, card: str) -> CardFit:
        assert self.largest is not None  # noqa: S101 -- the caller has checked it
        outside, total = outside_memory(card), profiles.load(card).properties["total_memory"]
        history = self._history(self.largest.device)
        if history is None:
            return _by_bounds(card, self._most_allocated, self.largest.reserved)
        outcome = history.run(None, total - outside.low)
        size = f"{format_bytes(outcome.peak_reserved)} of {format_bytes(total)} reserved"
        if outcome.ran_out is not None:
            return CardFit(card, Verdict.DOES_NOT_FIT, f"does not fit: memory runs out after {size}")
        if outcome.peak_reserved + outside.high > total:
            return CardFit(card, Verdict.TIGHT, f"tight: {size}")
        return CardFit(card, Verdict.FITS, f"fits: {size}")

    def _history(self, device: int) -> History | None:
        """Return the recorded history of a device for replays; None if it is not complete."""
        from forebay.snapshot.replay.engine import History

        if device not in self._histories:
            with temporary_folder("forebay-watch-") as folder:
                path = folder / "snapshot.pickle"
                path.write_bytes(pickle.dumps(self._torch.cuda.memory._snapshot()))
                found = {each.device: each for each in snapshot.load(path)}
            recorded = found.get(f"cuda:{device}")
            complete = recorded is not None and 0 < len(recorded.trace) < self._options["entries"]
            self._histories[device] = History(recorded) if complete and recorded is not None else None
        return self._histories[device]


def _by_bounds(card: str, allocated: int, reserved: int) -> CardFit:
    """Return what the peaks alone tell about a card: the allocator can release a part of what it has reserved."""
    outside, total = outside_memory(card), profiles.load(card).properties["total_memory"]
    if reserved + outside.high <= total:
        return CardFit(card, Verdict.FITS, f"fits: {format_bytes(reserved)} of {format_bytes(total)} reserved")
    if allocated + outside.low > total:
        return CardFit(
            card, Verdict.DOES_NOT_FIT, f"does not fit: {format_bytes(allocated)} allocated of {format_bytes(total)}"
        )
    text = f"not known from {format_bytes(reserved)} reserved of {format_bytes(total)}: forebay fit --cards {card} ..."
    return CardFit(card, None, text)


def _note(path: Path) -> str:
    """Return the beginning of an explanation."""
    text = path.with_suffix(".txt")
    try:
        lines = text.read_text(errors="replace").splitlines()[:_LINES]
    except OSError:
        lines = []
    return "\n".join([f"forebay: snapshot {path}, explanation {text.name}", *lines])
