"""`fork_rng`: states are restored, for the chosen devices, whatever happens in the block."""

from __future__ import annotations

import warnings

import pytest

import forebay
from forebay.runtime.random import fork_rng as module

pytestmark = pytest.mark.usefixtures("untouched_seeds")


@pytest.fixture(autouse=True)
def not_warned(monkeypatch):
    monkeypatch.setattr(module, "_warned", False)


def draw(device):
    return forebay.rand(3, device=device).tolist()


@pytest.mark.parametrize("error", [None, KeyError])
def test_fork_rng_restores_states(emulated, error):
    devices = ["cpu", "cuda:0", "cuda:1"]
    forebay.cuda.init()  # runs the calls that other tests have queued
    states = [forebay.get_rng_state(device).tolist() for device in devices]
    with pytest.raises(KeyError) if error else warnings.catch_warnings(), forebay.random.fork_rng(range(2)):
        for device in devices:
            forebay.random.manual_seed(5, device)
            draw(device)
        if error:
            raise error
    assert [forebay.get_rng_state(device).tolist() for device in devices] == states


def test_fork_rng_does_not_restore_other_devices(emulated):
    with forebay.random.fork_rng(["cuda:1"]):
        inside = draw("cuda:0")
    assert draw("cuda:0") != inside


def test_disabled_fork_rng_restores_no_state():
    with forebay.random.fork_rng(enabled=False):
        forebay.manual_seed(5)
        forebay.rand(3)
    offset = forebay.random.default_generator().get_offset()
    assert (forebay.initial_seed(), offset) == (5, 4)


def test_several_devices_without_a_list_warn_once(emulated):
    with pytest.warns(UserWarning, match="CUDA reports that you have 2 available devices"), forebay.random.fork_rng():
        pass
    with warnings.catch_warnings(), forebay.random.fork_rng():
        pass
