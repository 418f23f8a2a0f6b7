"""Devices that are emulated for PyTorch."""

from __future__ import annotations

import pytest

import forebay

collect_ignore = ["distributed_programs/training.py"]  # needs PyTorch; the ranks of test_distributed_training.py run it


@pytest.fixture
def emulated():
    """Two emulated H100 for PyTorch, with values."""
    from forebay.interop.torch import patch

    with forebay.emulate("cuda", count=2, profile="h100"), patch():
        yield


@pytest.fixture
def shapes_only():
    """Two emulated H100 for PyTorch, without values, whose reads raise errors."""
    from forebay.interop.torch import patch

    with forebay.emulate("cuda", count=2, profile="h100"), patch("strict"):
        yield


@pytest.fixture
def with_assumptions():
    """Two emulated H100 for PyTorch, without values, whose reads return assumed values."""
    from forebay.interop.torch import patch

    with forebay.emulate("cuda", count=2, profile="h100"), patch("shapes"):
        yield
