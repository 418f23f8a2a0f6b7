"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).parents[1]


os.environ.pop("PYTHONUNBUFFERED", None)  # children buffer as a user's programs do, whoever runs the tests
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it hides emulated devices, too
