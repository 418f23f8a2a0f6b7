"""Snapshot analysis: totals by allocation site and memory over time."""
