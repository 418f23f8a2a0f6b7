"""The stand-in of tests/softmetal as the Mac of a test."""

from __future__ import annotations

import gc

import pytest
from support import software_metal

from forebay.backends.metal import discovery


@pytest.fixture
def mac(monkeypatch):
    """The control of the stand-in, which is an M1 with 8 GiB. The test breaks no rule of Metal."""
    monkeypatch.setattr(discovery, "system", lambda: ("macOS", "15.5"))
    monkeypatch.setattr(discovery, "_found", None)
    with software_metal.installed() as control:
        yield control
        gc.collect()


@pytest.fixture
def become(mac, monkeypatch):
    """Return a function that makes the stand-in another machine."""

    def use(machine, **changes):
        monkeypatch.setattr(discovery, "_found", None)
        mac.use(machine, **changes)

    return use


@pytest.fixture
def port(mac):
    """The open device."""
    from forebay.backends.metal.driver import MetalDriver

    opened = MetalDriver().open(0)
    yield opened
    opened.close()
