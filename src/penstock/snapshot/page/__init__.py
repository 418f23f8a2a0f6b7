"""The parts of the HTML report: a template, a style, a small script, and the drawing of the curves."""

from __future__ import annotations

from penstock.snapshot.page import axes, chart

__all__ = ["axes", "chart"]
