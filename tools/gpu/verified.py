"""The entry and the page of a run that verified a GPU, taken into the repository."""

from __future__ import annotations

import datetime as dt
import lzma
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from steps import ROOT

from gpu import records
from gpu.results import read_file

__all__ = ["keep_verified"]

PAGE_OF_DOCS = ROOT / "docs" / records.PAGE
ENTRIES = ROOT / "src/forebay/backends" / records.VERIFIED


def keep_verified(path: Path) -> list[Path]:
    """Write the page and the entry of a run to the repository, and return both; neither if it verified nothing.

    Parameters
    ----------
    path : Path
        Folder of a run, or its archive.

    Raises
    ------
    ValueError
        If it has no results of a run.
    """
    try:
        entries = tomllib.loads(read_file(path, records.VERIFIED).decode()).get("run", [])
        page = read_file(path, records.PAGE).decode()
        if not entries:
            return []
        entry = _checked(entries[0])
    except (OSError, ValueError, KeyError, TypeError, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{path} has no results of a run: {type(error).__name__}: {error}") from None
    PAGE_OF_DOCS.write_text(page)
    ENTRIES.write_text(records.with_entry(ENTRIES, entry))
    return [PAGE_OF_DOCS, ENTRIES]


def _checked(run: Any) -> str:
    """Return the entry of a run again, after a look at each value."""
    if run["kind"] != "cuda" or not isinstance(run["when"], dt.date):
        raise ValueError(f"an entry of the kind {run['kind']!r}")
    return records.text_of_entry(str(run["on"]), run["when"], str(run["how"]))
