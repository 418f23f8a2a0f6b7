"""Flight recorder of a PyTorch program: snapshots of torch.cuda's allocator, and their explanation."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from forebay import snapshot
from forebay._base.atomic_write import atomic_write
from forebay._base.incident_triggers import IncidentTriggers, check_reasons
from forebay.errors import ForebayWarning
from forebay.records.model import Snapshot
from forebay.snapshot.report.incident_files import IncidentFiles

__all__ = ["OomRecorder", "record_oom"]


class OomRecorder:
    """A recorder of out-of-memory errors of PyTorch, which `record_oom` returns.

    Parameters
    ----------
    files : IncidentFiles
        The files to write.
    on : collection of str
        When to write.
    why_not : str
        The reason why it does nothing, or "".
    torch : module or None
        PyTorch.
    """

    def __init__(self, files: IncidentFiles, on: Collection[str], why_not: str, torch: Any) -> None:
        self._files, self._on, self._torch = files, on, torch
        self._why_not = why_not
        self._triggers = IncidentTriggers(self.write, on)
        if not why_not:
            self._triggers.start()

    @property
    def why_not(self) -> str:
        """The reason why the recorder does nothing; "" if it records."""
        return self._why_not

    @property
    def written(self) -> tuple[Path, ...]:
        """The snapshots that were written; the explanation of each has the suffix .txt."""
        return tuple(self._files.written)

    @property
    def suppressed(self) -> int:
        """The number of snapshots that `limit` prevented."""
        return self._files.suppressed

    def stop(self) -> None:
        """Write no more. PyTorch continues to record; its observer stays attached, without an effect."""
        self._triggers.stop()
        self._why_not = self._why_not or "it was stopped"

    def write(self, reason: str = "request", device: int | None = None) -> Path | None:
        """Write a snapshot of all devices of PyTorch, and the explanation of one.

        Parameters
        ----------
        reason : str, default "request"
            First word of the name of the file.
        device : int, optional
            Index of the device to explain; PyTorch's current device by default.

        Returns
        -------
        pathlib.Path or None
            The snapshot. None if nothing was written: see `why_not`, `suppressed` and the warnings.
        """
        if self._why_not:
            return None
        index = self._current_device() if device is None else device
        return self._files.write(reason, f"cuda:{index}", partial(self._write, index))

    def _current_device(self) -> int:
        try:
            return int(self._torch.cuda.current_device())
        except RuntimeError:  # after an error of the device; PyTorch's tables can still be read
            return 0

    def _on_oom(self, device: int, *sizes: int) -> None:
        """Write a snapshot: PyTorch's observer."""
        if "oom" in self._on:
            self.write("oom", device)

    def _write(self, index: int, path: Path) -> Snapshot:
        with atomic_write(path) as file:
            pickle.dump(self._torch.cuda.memory._snapshot(), file)
        found = snapshot.load(path)
        return next((each for each in found if each.device == f"cuda:{index}"), found[0])


def record_oom(
    folder: str | os.PathLike[str] = "forebay-oom",
    *,
    entries: int = 100_000,
    on: Collection[str] = ("oom",),
    limit: int = 8,
    replay: bool = True,
) -> OomRecorder:
    """Write a snapshot and its explanation whenever PyTorch runs out of CUDA memory.

    Uses `torch.cuda.memory._record_memory_history` and PyTorch's observer of out-of-memory errors, and initialises
    CUDA. The snapshots are pickles that PyTorch's viewer opens, too.

    Parameters
    ----------
    folder : str or os.PathLike, default "forebay-oom"
        The folder of the files, which is created. With torchrun, the names begin with the rank.
    entries : int, default 100_000
        Entries of PyTorch's memory history; the newest are kept. A recording that the program has started itself is
        left as it is.
    on : collection of str, optional
        When to write: "oom" (the default), before torch.OutOfMemoryError is raised; "exit", when the interpreter exits;
        "signal", on SIGUSR1.
    limit : int, default 8
        Number of snapshots to write in all.
    replay : bool, default True
        Replay the history to find settings that would have helped. 100,000 entries take about two seconds.

    Returns
    -------
    OomRecorder
        The recorder. Without PyTorch, or without a GPU that PyTorch can use, it does nothing: its `why_not` has the
        reason, which is also a ForebayWarning.

    Raises
    ------
    ValueError
        If `on` has another word, `entries` is not positive, `limit` is negative, or "signal" is in `on` and this is
        not the main thread.
    OSError
        If no file can be created in the folder.
    """
    if entries < 1:
        raise ValueError(f"entries must be at least 1, not {entries}")
    reasons = check_reasons(on)
    torch, why_not = _usable_torch()
    files = IncidentFiles(folder, ".pickle", limit, replay)
    recorder = OomRecorder(files, reasons, why_not, torch)
    if why_not:
        warnings.warn(f"record_oom() does nothing: {why_not}", ForebayWarning, stacklevel=2)
        return recorder
    torch.cuda.init()
    if not torch._C._cuda_isHistoryEnabled():
        torch.cuda.memory._record_memory_history(max_entries=entries, stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(recorder._on_oom)
    return recorder


def _usable_torch() -> tuple[Any, str]:
    """Return PyTorch, and why it cannot be recorded, or ""."""
    try:
        import torch
    except ImportError as error:
        return None, f"PyTorch cannot be imported: {error}"
    if not hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
        return torch, f"this PyTorch ({torch.__version__}) was built without CUDA"
    if not torch.cuda.is_available():
        return torch, "torch.cuda.is_available() is False: PyTorch finds no GPU or no driver"
    return torch, ""
