"""The version of forebay from the name of its distribution's folder, and from its metadata otherwise."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from forebay._base.own_version import own_version


@pytest.fixture
def metadata(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", {"forebay": "from the metadata"}.__getitem__)


@pytest.mark.parametrize(
    ("folders", "version"),
    [
        (["forebay-1.2.dist-info", "forebay_other-3.dist-info"], "1.2"),
        (["forebay-1.2.3rc1+local.dist-info"], "1.2.3rc1+local"),
        ([], "from the metadata"),
        (["forebay-1.2.dist-info", "forebay-1.3.dist-info"], "from the metadata"),
        (["forebay-1.2.dist-info", "forebay.egg-info"], "from the metadata"),
    ],
)
def test_version_is_that_of_the_first_distribution(monkeypatch, metadata, tmp_path, folders, version):
    for name in folders:
        (tmp_path / "own" / name).mkdir(parents=True)
    (tmp_path / "later/forebay-9.dist-info").mkdir(parents=True)
    missing = str(tmp_path / "missing")
    monkeypatch.setattr(sys, "path", [missing, None, str(tmp_path / "own"), *[str(tmp_path / "later")] * bool(folders)])
    assert own_version() == version


def test_installed_version_is_that_of_the_metadata():
    assert own_version() == importlib.metadata.version("forebay")
