"""Limits and errors that backends have in common."""

from __future__ import annotations

import pickle

import pytest

from forebay._base import config
from forebay.backends.common.failures import driver_timeout, out_of_memory_error


def test_timeout_follows_the_variable(monkeypatch):
    monkeypatch.delenv(config.DRIVER_TIMEOUT.name, raising=False)
    assert driver_timeout() == 10.0
    monkeypatch.setenv(config.DRIVER_TIMEOUT.name, "0.25")
    assert driver_timeout() == 0.25
    monkeypatch.setenv(config.DRIVER_TIMEOUT.name, "soon")
    with pytest.raises(ValueError, match="FOREBAY_DRIVER_TIMEOUT: 'soon' is not a number of seconds"):
        driver_timeout()


@pytest.mark.parametrize(("longest", "end"), [(None, ""), (1 << 29, "; a buffer has at most 512.00 MiB")])
def test_error_has_the_numbers_in_its_text_and_attributes(longest, end):
    error = out_of_memory_error(
        "mtia:1", 3 << 30, free=1 << 30, capacity=4 << 30, reserved=2 << 20, longest=longest, code=7, call="allocate"
    )
    text = "mtia:1: requested 3.00 GiB, 1.00 GiB free of 4.00 GiB, 2.00 MiB reserved by forebay"
    assert str(error) == text + end
    assert (error.wanted, error.free, error.capacity, error.reserved) == (3 << 30, 1 << 30, 4 << 30, 2 << 20)
    assert (error.code, error.call, error.device) == (7, "allocate", "mtia:1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
