"""Modules of device kinds that a vendor registers."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

import forebay
from forebay import _utils


@pytest.fixture
def registered(monkeypatch):
    """A module registered for the fake kind."""
    module = types.ModuleType("vendor_module")
    monkeypatch.setattr(_utils, "_registered", {})
    forebay._register_device_module("fake:0", module)
    yield module
    del forebay.fake, sys.modules["forebay.fake"]


@pytest.mark.usefixtures("fake")
def test_registered_module_is_the_one_of_the_kind(registered):
    assert forebay.fake is registered
    assert importlib.import_module("forebay.fake") is registered
    assert forebay.get_device_module("fake:1") is registered
    with pytest.raises(RuntimeError, match="'fake' has already been registered with '<module 'vendor_module'"):
        forebay._register_device_module("fake", types.ModuleType("other"))
