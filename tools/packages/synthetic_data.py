"""Data of the right shape for public programs: small, the same in each run, and without meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from packages import synthetic_images, synthetic_models, synthetic_texts

__all__ = ["maker"]


def maker(kind: str) -> Callable[[Path], None]:
    """Return the function that writes data of a kind to a path. Raises ValueError if there is none."""
    for module in (synthetic_texts, synthetic_images, synthetic_models):
        if kind in module.__all__:
            found: Callable[[Path], None] = getattr(module, kind)
            return found
    raise ValueError(f"no synthetic data of the kind {kind!r}")
