"""Sequences of allocations of PyTorch programs equal those of the real PyTorch (tests/data/torch_allocations)."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="compares PyTorch programs on emulated devices")

from support import allocation_sequences as sequences  # noqa: E402 -- needs torch

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import workspaces  # noqa: E402 -- as above

FILES = sorted({path.stem for path in sequences.RECORDS.glob("*.json")} - {"compiled"})  # compile/test_plans.py
# Programs whose frees between two allocations come from a hash table of PyTorch: the order is not compared.
UNORDERED = {
    "transformers": {"autocast"},
    "linear_layers": {"linear_with_autocast"},
    "linear_layers.kept": {"linear_with_autocast"},
}
OF_EARLIER = "PyTorch 2.13 copies the input to the contiguous layout, 2.15 does not"
DIFFERS = {
    "normalization": {"group_norm_channels_last": OF_EARLIER} if torch.__version__ < "2.15" else {},
    "optimizers": {"other_optimizers_for_loop": "one temporary result for each parameter is missing"},
}


@pytest.fixture(scope="module")
def recorded():
    return {file: json.loads((sequences.RECORDS / f"{file}.json").read_text())["sequences"] for file in FILES}


@pytest.fixture(params=FILES)
def file(request):
    return request.param


@pytest.fixture(autouse=True)
def emulated(file):
    workspaces.set_lifetime("process" if file.endswith(".kept") else "call")  # the latter as in PyTorch 2.15
    with forebay.emulate("cuda", profile="h200"), patch():
        yield
    workspaces.set_lifetime(None)


def in_any_order(rows):
    """Return a sequence with the frees between two allocations in the order of the numbers."""
    ordered, frees = [], []
    for row in rows:
        if isinstance(row, list):
            ordered += [*sorted(frees), row]
            frees = []
        else:
            frees.append(row)
    return ordered + sorted(frees)


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_sequences_equal_those_of_the_real_pytorch(file, recorded):
    differing = {}
    count = 0
    for name, program in sequences.programs_of(file.partition(".")[0]).items():
        expected = recorded[file].get(name)
        if not isinstance(expected, list):
            continue
        count += 1
        found = sequences.sequence_of(torch, program)
        if name in UNORDERED.get(file, ()):
            found, expected = in_any_order(found), in_any_order(expected)
        if found != expected:
            differing[name] = sequences.readable(found)
    assert count > 4
    assert sorted(differing) == sorted(DIFFERS.get(file, ()))
