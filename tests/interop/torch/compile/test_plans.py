"""Allocations of compiled programs equal those of PyTorch's CUDA build: sizes, streams, frees and their order."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="compares PyTorch programs on emulated devices")
pytest.importorskip("triton", reason="Inductor needs Triton, which is no requirement of PyTorch's builds for the CPU")

from support import allocation_sequences as sequences  # noqa: E402 -- needs torch

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

RECORDED = json.loads((sequences.RECORDS / "compiled.json").read_text())
PROGRAMS = sequences.programs_of("compiled")
pytestmark = [
    pytest.mark.skipif(torch.__version__.partition("+")[0] != RECORDED["torch"].partition("+")[0],
                       reason="Inductor's plans differ between versions of PyTorch"),
    pytest.mark.filterwarnings("ignore"),  # a warning of PyTorch as an error would be a graph break
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_record_has_each_program():
    assert [*RECORDED["sequences"]] == [*PROGRAMS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_plan_equals_that_of_the_cuda_build(name):
    with forebay.emulate("cuda", profile="h200"), patch("shapes"):
        found = sequences.sequence_of(torch, PROGRAMS[name])
    assert sequences.readable(found) == sequences.readable(RECORDED["sequences"][name])
