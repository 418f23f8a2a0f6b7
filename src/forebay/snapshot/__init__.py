"""Memory snapshots: schema, file formats, analysis, replay and reports. Does not open a device."""

from __future__ import annotations

import os
from collections.abc import Callable

from forebay.records.model import Action, Frame, Snapshot, State

__all__ = ["Action", "Frame", "Snapshot", "State", "load"]


def load(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> tuple[Snapshot, ...]:
    """Load the snapshots in a file, one for each device.

    Reads forebay's own format and pickles of `torch.cuda.memory._dump_snapshot`, also compressed by gzip or Zstandard;
    the content of the file decides which, not its name. No code in the file is executed.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    progress : callable, optional
        Called as `progress(bytes_done, bytes_total)`.

    Returns
    -------
    tuple of Snapshot
        One for each device, by device index; pinned memory follows as the device "pinned". The note "truncated" is set
        if a pickle ends early, and what precedes its end was read; and if a program under ``forebay run`` has written
        no report.

    Raises
    ------
    forebay.snapshot.formats.native.BadSnapshot
        If the file is truncated, in another format, or inconsistent.
    OSError
        If the file cannot be opened, or is a directory, a pipe or a device.
    """
    from forebay._base.untrusted import open_regular
    from forebay.snapshot.formats import native, safe_pickle, torch_pickle, unfinished
    from forebay.snapshot.formats.byte_source import ByteSource

    with open_regular(path) as file:
        if file.read(2) == b"PK":
            return (native.read(path, progress),)
        try:
            source = ByteSource(file, progress)
            start = source.read(4)
            known = safe_pickle.looks_like_pickle(start)
            source.rewind()
            if unfinished.is_unfinished(start):
                return (unfinished.read(file),)
            if known:
                return torch_pickle.read(source)
        except native.BadSnapshot as error:
            raise native.BadSnapshot(f"{os.fspath(path)}: {error}") from error.__cause__
    raise native.BadSnapshot(f"{os.fspath(path)}: neither a forebay snapshot nor a PyTorch snapshot pickle")
