"""Device: a name, spelled as in PyTorch."""

from __future__ import annotations

import pickle

import pytest

import forebay
from forebay import Device, ForebayError
from forebay.runtime.devices import open_device


@pytest.mark.parametrize(
    ("spelled", "kind", "index"),
    [
        (Device("host"), "host", None),
        (Device("host:0"), "host", 0),
        (Device("cuda", 12), "cuda", 12),
        (Device(Device("mps:1")), "mps", 1),
        (Device(Device("mps"), 1), "mps", 1),
    ],
)
def test_the_spellings(spelled, kind, index):
    assert (spelled.kind, spelled.type, spelled.index) == (kind, kind, index)
    assert str(spelled) == (kind if index is None else f"{kind}:{index}")
    assert repr(spelled) == f"device('{spelled}')"
    assert pickle.loads(pickle.dumps(spelled)) == spelled
    assert len({spelled, Device(str(spelled))}) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "host:",
        "host:-1",
        "host:01",
        "host:0 ",
        " host",
        "HOST",
        "host:0:0",
        "host:x",
        "ho st",
        0,
        None,
        b"host",
    ],
)
def test_what_names_no_device(name):
    with pytest.raises(ValueError, match="invalid device"):
        Device(name)


@pytest.mark.parametrize("index", [-1, True, 1.0, "1"])
def test_what_is_no_index(index):
    with pytest.raises(ValueError, match="index"):
        Device("host", index)


def test_an_index_is_given_once():
    with pytest.raises(ValueError, match="has an index already"):
        Device("host:0", 0)


def test_a_device_does_not_change():
    with pytest.raises(AttributeError):
        Device("host:0").index = 1


def test_naming_opens_nothing_and_counting_neither(fake):
    Device("fake:7")
    assert forebay.device_count("fake") == 2
    assert forebay.device_count("nobody") == 0
    assert fake.ports == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fake:2", "no device fake:2: there is only fake:0 to fake:1"),
        ("host:64", "no device host:64: there is only host:0"),
        ("nobody:0", "'nobody' is not a kind of device"),
        ("mtia:0", "no device mtia:0"),
    ],
)
def test_a_device_that_is_not_there(fake, name, words):
    with pytest.raises(ForebayError, match=words):
        forebay.empty(1, device=name)
    assert Device(name) not in open_device._opened
