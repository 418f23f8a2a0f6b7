"""What named devices are: one file each, with the properties under PyTorch's names. Data only; nothing is opened."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["load", "names"]


@cache
def names() -> tuple[str, ...]:
    """The profiles there are."""
    from importlib import resources  # late: a program that names no profile need not wait for it

    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load(name: str) -> dict[str, Any]:
    """The properties of a device, by its profile's name; ValueError where there is none.

    >>> load("h200")["multi_processor_count"]
    132
    """
    if name not in names():
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(names())}")
    return dict(_read(name))


@cache
def _read(name: str) -> dict[str, Any]:
    import tomllib
    from importlib import resources

    return tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text())
