"""The version of forebay itself, which is not the version of PyTorch whose behaviour it has."""

from __future__ import annotations

__all__ = ["own_version"]


def own_version() -> str:
    """Return the version of the installed distribution, or "0+source" in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # imports half the standard library

    try:
        return version("forebay")
    except PackageNotFoundError:
        return "0+source"
