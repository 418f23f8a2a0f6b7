"""Snapshots: the schema here; reading, questions, text and pages in the modules beside it. Opens no device."""

from __future__ import annotations

from penstock.snapshot.model import Action, Frame, Snapshot, State

__all__ = ["Action", "Frame", "Snapshot", "State"]
