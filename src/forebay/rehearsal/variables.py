"""Environment variables by which a run without values and the program in it find each other."""

from __future__ import annotations

__all__ = ["CHANNEL", "FOLDER", "MECHANISM", "RENAMES"]

CHANNEL = "FOREBAY_REHEARSAL_CHANNEL"  # the descriptor of a socket to the launcher
RENAMES = "FOREBAY_REHEARSAL_RENAMES"  # set where Python must copy folders to rename them
FOLDER = "FOREBAY_REHEARSAL_FOLDER"  # of the changes, where Python's functions redirect them
MECHANISM = "FOREBAY_REHEARSAL"  # "auto" (default), "namespace" or "python"; "inside" in the program
