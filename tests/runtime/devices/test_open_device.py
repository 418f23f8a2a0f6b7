"""Which devices are open: the list follows those that come and go, and is the same one as long as none does."""

from __future__ import annotations

import pytest

import forebay
from forebay.runtime.devices.open_device import opened_of

pytestmark = pytest.mark.usefixtures("clean")


def devices(kind):
    return [str(opened.device) for opened in opened_of(kind).devices]


def test_devices_are_listed_by_index_and_gone_with_their_emulation():
    with forebay.emulate("mtia", count=3):
        assert devices("mtia") == []
        forebay.zeros(3, device="mtia:2")
        forebay.zeros(3, device="mtia:0")
        assert devices("mtia") == ["mtia:0", "mtia:2"]
        assert opened_of("mtia") is opened_of("mtia")
        assert [*opened_of("mtia").native] == [opened.allocator for opened in opened_of("mtia").devices]
        with forebay.emulate("mps"):
            forebay.zeros(3, device="mps")
            assert {"mtia:0", "mtia:2", "mps:0"} <= set(devices(""))
    assert devices("mtia") == devices("mps") == []


def test_a_device_that_is_gone_is_of_no_kind():
    with forebay.emulate("mtia"):
        forebay.zeros(3, device="mtia")
        (opened,) = opened_of("mtia").devices
    assert (opened.kind, opened.gone) == ("", "ended")
