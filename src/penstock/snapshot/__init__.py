"""Snapshots: read and write them, ask them questions, turn them into text and pages. Opens no device."""

from __future__ import annotations

from penstock.snapshot import analyse, codec, html, text, timeline
from penstock.snapshot.codec import BadSnapshot, read, write
from penstock.snapshot.model import Action, Frame, Snapshot, State

__all__ = [
    "Action",
    "BadSnapshot",
    "Frame",
    "Snapshot",
    "State",
    "analyse",
    "codec",
    "html",
    "read",
    "text",
    "timeline",
    "write",
]
