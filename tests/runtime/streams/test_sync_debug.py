"""Sync debug mode names the waiting line. The waiting calls are listed in tests/names/scenes/waiting.py."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from forebay.errors import ForebayWarning
from forebay.runtime.streams import sync_debug


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.tolist(),
        lambda tensor: bool(tensor[0]),
        lambda tensor: tensor.copy_(np.ones(3)),
        lambda tensor: forebay.tensor([1.0], device=tensor.device),
        lambda tensor: forebay.current_stream(tensor.device).synchronize(),
    ],
    ids=["cpu", "tolist", "bool", "copy from array", "tensor", "stream"],
)
def test_warning_names_the_callers_file(monkeypatch, wait):
    with forebay.emulate("cuda"):
        tensor = forebay.zeros(3, device="cuda")
        monkeypatch.setattr(sync_debug, "mode", sync_debug.WARN)
        with pytest.warns(ForebayWarning, match="called a synchronizing CUDA operation") as warned:
            wait(tensor)
    assert {each.filename for each in warned} == {__file__}
