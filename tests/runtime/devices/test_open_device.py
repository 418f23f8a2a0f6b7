"""The list of open devices: updated when a device is opened or retired, cached otherwise."""

from __future__ import annotations

import pytest

import forebay
from forebay.runtime.devices.open_device import open_devices

pytestmark = pytest.mark.usefixtures("clean")


def devices(kind):
    return [str(opened.device) for opened in open_devices(kind).devices]


def test_open_devices_are_sorted_and_removed_with_their_emulation():
    with forebay.emulate("mtia", count=3):
        assert devices("mtia") == []
        forebay.zeros(3, device="mtia:2")
        forebay.zeros(3, device="mtia:0")
        assert devices("mtia") == ["mtia:0", "mtia:2"]
        assert open_devices("mtia") is open_devices("mtia")
        assert [*open_devices("mtia").native] == [opened.allocator for opened in open_devices("mtia").devices]
        with forebay.emulate("mps"):
            forebay.zeros(3, device="mps")
            assert {"mtia:0", "mtia:2", "mps:0"} <= set(devices(""))
    assert devices("mtia") == devices("mps") == []


def test_retired_device_has_no_kind():
    with forebay.emulate("mtia"):
        forebay.zeros(3, device="mtia")
        (opened,) = open_devices("mtia").devices
    assert (opened.kind, opened.unusable) == ("", "ended")
