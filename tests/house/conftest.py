"""Fixture: dev.py as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dev(root: Path):
    spec = importlib.util.spec_from_file_location("dev", root / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
