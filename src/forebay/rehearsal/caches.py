"""Folders of downloads: their content does not depend on values, and must not be downloaded again by each run."""

from __future__ import annotations

import os

__all__ = ["download_caches"]


def download_caches() -> tuple[str, ...]:
    """Return the folders in which libraries keep models and data sets that they download."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 -- texts, as in the plan
    hugging_face = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    torch = os.environ.get("TORCH_HOME") or f"{cache}/torch"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{hugging_face}/hub"
    xet = os.environ.get("HF_XET_CACHE") or f"{hugging_face}/xet"
    return tuple(dict.fromkeys(os.path.realpath(each) for each in (hub, xet, f"{torch}/hub")))
