"""The colors of the report page: text is readable in both themes (WCAG 2.2, level AA: 4.5 to 1)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("forebay.snapshot.report.page").joinpath("report.css").read_text("utf-8")
COLORS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
}
PAIRS = [
    *((text, ground) for text in ("ink", "soft", "accent") for ground in ("page", "card")),
    ("ink", "hover"), ("ink", "alarm-card"), ("alarm", "alarm-card"), ("alarm", "card"), ("card", "accent"),
    *(("ink", f"f{number}") for number in range(6)),
]  # fmt: skip


def luminance(color: str) -> float:
    linear = []
    for at in (1, 3, 5):
        part = int(color[at : at + 2], 16) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_is_readable(text, ground, theme):
    assert contrast(COLORS[text][theme], COLORS[ground][theme]) >= 4.5
