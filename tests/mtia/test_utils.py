"""`mtia._utils._get_device_index`."""

from __future__ import annotations

import pytest

import forebay
from forebay import mtia
from forebay.mtia._utils import _get_device_index


@pytest.fixture(autouse=True)
def two_devices():
    with forebay.emulate("mtia", count=2, memory="64MiB"):
        yield


@pytest.mark.parametrize("device", [1, "mtia:1", forebay.device("mtia", 1)])
def test_index_of_a_device_is_returned(device):
    assert _get_device_index(device) == 1
    assert not mtia.is_initialized()


@pytest.mark.parametrize("device", [None, "mtia"])
def test_missing_index_is_the_current_device_if_it_is_optional(device):
    mtia.set_device(1)
    assert _get_device_index(device, optional=True) == 1
    with pytest.raises(ValueError, match="device"):
        _get_device_index(device)


def test_cpu_needs_permission():
    assert _get_device_index("cpu", allow_cpu=True) == -1
    with pytest.raises(ValueError, match="cpu"):
        _get_device_index("cpu")
