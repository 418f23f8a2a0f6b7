"""Fixtures: dev.py and tools/write_names.py as modules."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def dev(root: Path):
    spec = importlib.util.spec_from_file_location("dev", root / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def write_names(root: Path):
    """Return tools/write_names.py."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(root / "tools")
        yield importlib.import_module("write_names")
