"""The version of forebay itself, which is not the version of PyTorch whose behaviour it has."""

from __future__ import annotations

import os
import re
import sys

__all__ = ["own_version"]

_FOLDER = re.compile(r"forebay-([0-9][^-]*)\.dist-info")


def own_version() -> str:
    """Return the version of the installed distribution, or "0+source" in a source tree that is not installed."""
    if (named := _named_version(sys.path)) is not None:
        return named
    from importlib.metadata import PackageNotFoundError, version  # imports half the standard library

    try:
        return version("forebay")
    except PackageNotFoundError:
        return "0+source"


def _named_version(folders: list[str]) -> str | None:
    """Return the version in the name of the distribution's folder, the first on the path; None if that is not plain."""
    for folder in folders:
        try:
            found = [match[1] for name in os.listdir(folder or ".") if (match := _FOLDER.fullmatch(name))]  # noqa: PTH208 - a tenth of the time
            other = any(os.path.lexists(os.path.join(folder, name)) for name in ("forebay.egg-info", "EGG-INFO"))  # noqa: PTH118 - as above
        except (OSError, TypeError):  # no folder: a zip file, or an entry of another kind
            continue
        if other or len(found) > 1:
            return None
        if found:
            return found[0]
    return None
