"""Sizes of CUB's temporary storage, as PyTorch requested them on GPUs and over the oracle."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.emulated_memory import open_torch_device  # noqa: E402 -- as above
from forebay.interop.torch.kernels import temporary_storage as storage  # noqa: E402 -- as above


def sizes(profile, *calls):
    with forebay.emulate("cuda", profile=profile), patch("shapes"):
        opened = open_torch_device(torch.device("cuda", 0))
        return [storage.sort_bytes(opened, *call) for call in calls]


def test_sort_of_indices_is_that_of_recorded_gpus():
    """16 n + n / 4 + 5,631 bytes for 2,048, 4,096 and 8,192 indices of a vocabulary, on GPUs of capability 8."""
    calls = [(count, 8, 8, storage.bits_of(50_256)) for count in (2048, 4096, 8192)]
    assert sizes("a100", *calls) == [1, 72_191, 138_751]


def test_sort_depends_on_keys_and_values_as_over_the_oracle():
    calls = ((4096, 8, 8, 10), (8192, 8, 8, 10), (40_000, 4, 8), (40_000, 2, 8), (40_000, 8, 8), (30_000, 4, 8, 32),
             (100_000, 8, 8, 36), (10_000, 8, 0, 2), (1_000_000, 8, 0), (10_000, 1, 8, 1))  # fmt: skip
    assert sizes("h200", *calls) == [
        71_167, 137_727, 496_895, 412_927, 666_111, 375_039, 1_633_279, 4607, 8_195_071, 5631,
    ]  # fmt: skip


def test_keys_of_floats_have_smaller_tiles():
    with forebay.emulate("cuda", profile="h200"), patch("shapes"):
        opened = open_torch_device(torch.device("cuda", 0))
        assert storage.sort_bytes(opened, 1_000_000, 4, 0, floating=True) == 4_157_183


def test_count_and_selection_are_those_over_the_oracle():
    with forebay.emulate("cuda", profile="h200"), patch("shapes"):
        opened = open_torch_device(torch.device("cuda", 0))
        assert [storage.count_bytes(opened, count) for count in (2000, 100_000)] == [1, 21_503]
    assert [storage.selection_bytes(count, key) for count, key in ((2000, 1), (1_000_000, 1), (1_000_000, 4))] == [
        1023, 2815, 2047,
    ]  # fmt: skip
