"""Names of the package that are made at first use. With a core that does not load: process/test_broken_core.py."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

import forebay
from forebay.errors import NoArithmetic
from forebay.names import cpu_storages


@pytest.mark.parametrize("name", cpu_storages.__all__)
def test_storages_of_the_cpu_are_names_of_the_package(name):
    assert getattr(forebay, name) is getattr(cpu_storages, name)


@pytest.mark.parametrize("name", ["QuadStorage", "Storage", "nosuch"])
def test_unknown_name_is_an_attribute_error_that_says_what_forebay_has(name):
    with pytest.raises(AttributeError, match=f"^forebay has no attribute '{name}': forebay has devices, ") as caught:
        getattr(forebay, name)
    assert isinstance(caught.value, NoArithmetic)
    assert not hasattr(forebay, name)


@pytest.mark.parametrize("name", ["_nosuch", "__nosuch__"])
def test_unknown_private_name_is_an_attribute_error_of_the_module(name):
    with pytest.raises(AttributeError, match=f"^module 'forebay' has no attribute '{name}'$"):
        getattr(forebay, name)


def test_version_is_that_of_the_installed_package(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(importlib.metadata, "version", {"forebay": "1.2.3"}.__getitem__)
    assert forebay.__version__ == "1.2.3"


def test_source_tree_has_a_version(monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert forebay.__version__ == "0+source"


@pytest.mark.parametrize("name", ["Tensor", "float", "load_ipython_extension", "memory"])
def test_missing_core_is_the_reason_for_missing_names(monkeypatch, name):
    why = OSError("the first line\nthe second line")
    monkeypatch.setattr(forebay, "_why_no_core", why)
    with pytest.raises(ImportError) as caught:
        forebay.__getattr__(name)
    assert (caught.value.name, caught.value.__cause__) == ("forebay._core", why)
    assert str(caught.value) == (
        "forebay's compiled core does not load (OSError: the first line); `forebay doctor` reports the remedy"
    )
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        forebay.__getattr__("nosuch")
