"""`forebay.version.TorchVersion` compares as PyTorch's class; tests/data/programs/device_tools.py compares them."""

from __future__ import annotations

import pytest

import forebay
from forebay.version import TorchVersion


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("2.9", "2.15.0"),
        ("2.15.0rc1", "2.15"),
        ("2.15.0a0+git1", "2.15"),
        ("2.15.0.dev20260101+cu132", "2.15.0"),
        ("2.15", "2.15.0+cu132"),
        ("2.15.0+cu130", "2.15.0+cu132"),
        ("v1.13.1", "2.0"),
    ],
)
def test_versions_are_ordered_by_their_numbers(low, high):
    first, second = TorchVersion(low), TorchVersion(high)
    assert first < high
    assert first <= high
    assert first != high
    assert second > low
    assert second >= low
    assert not first > second


def test_trailing_zeros_do_not_matter():
    assert TorchVersion("2.15.0") == "2.15"
    assert TorchVersion("2.15") >= (2, 15, 0)
    assert TorchVersion("2.15") < (2, 16)


def test_other_strings_are_compared_as_strings():
    assert TorchVersion("2.15") < "nonsense"
    assert TorchVersion("2.15") != "nonsense"
    assert {TorchVersion("2.15"): 1}["2.15"] == 1


def test_version_is_pytorchs():
    assert forebay.version.__version__ > "2.15.0"
    assert forebay.version.__version__ < "2.16"
