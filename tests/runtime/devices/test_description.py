"""The properties of a device that a notebook displays."""

from __future__ import annotations

import pytest
from support.markup import check_markup

import forebay
from forebay import backends
from forebay.runtime.devices import open_device
from forebay.runtime.devices.current import opened_for
from forebay.runtime.devices.description import describe

pytestmark = pytest.mark.usefixtures("clean")


def test_closed_device_is_described_without_opening_it():
    with forebay.emulate("cuda", profile="h200"):
        found = describe(forebay.device("cuda", 0))
        assert found == [("name", "NVIDIA H200 (emulated)"), ("memory", "139.80 GiB"), ("state", "not open")]
        assert open_device.get_open_device(forebay.device("cuda", 0)) is None


def test_open_device_has_figures():
    with forebay.emulate("cuda", memory="64MiB"):
        kept = forebay.empty(1000, dtype="uint8", device="cuda")
        found = dict(describe(forebay.device("cuda")))
        assert (found["memory"], found["allocated"], found["reserved"]) == ("64.00 MiB", "1.00 KiB", "2.00 MiB")
        check_markup(forebay.device("cuda")._repr_html_())
        assert "2.00 MiB" in forebay.device("cuda")._repr_html_()
        del kept


def test_closed_device_of_a_plain_driver_has_only_a_state(fake):
    assert describe(forebay.device("fake", 1)) == [("state", "not open")]
    assert fake.ports == []


def test_device_that_does_not_exist_has_the_reason(fake):
    assert describe(forebay.device("fake", 2)) == [("state", "does not exist; devices of this kind: 2")]
    (entry,) = describe(forebay.device("cuda", 0))
    assert entry == ("state", backends.driver("cuda").why_not())


def test_device_with_another_allocator_names_it_instead_of_figures(fake, monkeypatch):
    opened = opened_for("fake:0")
    monkeypatch.setattr(opened, "pluggable", "the allocator of a library")
    assert describe(forebay.device("fake", 0))[1:] == [
        ("memory", "64.00 MiB"),
        ("state", "uses the allocator of a library"),
    ]
