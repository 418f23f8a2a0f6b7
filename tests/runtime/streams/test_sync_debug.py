"""Whether the sync debug mode names the line that waits; which calls wait is in tests/faces/scenes/waiting.py."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from forebay.errors import ForebayWarning
from forebay.runtime.streams import sync_debug


@pytest.mark.parametrize(
    "wait",
    [
        lambda there: there.cpu(),
        lambda there: there.tolist(),
        lambda there: bool(there[0]),
        lambda there: there.copy_(np.ones(3)),
        lambda there: forebay.tensor([1.0], device=there.device),
        lambda there: forebay.current_stream(there.device).synchronize(),
    ],
    ids=["a copy to the host", "all numbers", "one", "an array", "a new tensor", "the stream"],
)
def test_who_warns_of_waits_names_the_programs_line(monkeypatch, wait):
    with forebay.emulate("cuda"):
        there = forebay.zeros(3, device="cuda")
        monkeypatch.setattr(sync_debug, "mode", sync_debug.WARN)
        with pytest.warns(ForebayWarning, match="called a synchronizing CUDA operation") as said:
            wait(there)
    assert {each.filename for each in said} == {__file__}
