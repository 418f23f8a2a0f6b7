"""Snapshots: the schema here; reading, questions, text and pages in the modules beside it. Opens no device."""

from __future__ import annotations

import os
from collections.abc import Callable

from forebay.snapshot.model import Action, Frame, Snapshot, State

__all__ = ["Action", "Frame", "Snapshot", "State", "load"]


def load(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> tuple[Snapshot, ...]:
    """The snapshots in a file of forebay's or a pickle of PyTorch's, one for each device; the content decides.

    Nothing in the file is run, whoever made it. `progress` hears of bytes done and bytes in all. Raises
    codec.BadSnapshot for what is cut short or foreign, OSError for what cannot be opened.
    """
    from forebay.snapshot.formats import native, safe_pickle, torch_pickle

    with open(path, "rb") as file:  # noqa: PTH123 - as a pathlib.Path would, without making one
        head = file.read(4)
        if head[:2] == b"PK":
            return (native.read(path, progress),)
        if not safe_pickle.begins_like_one(head):
            raise native.BadSnapshot(f"{os.fspath(path)}: neither a snapshot of forebay's nor a pickle of PyTorch's")
        data = head + file.read()
    try:
        return torch_pickle.parse(data)
    except native.BadSnapshot as error:
        raise native.BadSnapshot(f"{os.fspath(path)}: {error}") from error.__cause__
