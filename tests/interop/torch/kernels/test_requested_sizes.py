"""Sizes that operators request, with values and without, as recorded with PyTorch's CUDA build."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.requested_sizes import RECORD, names, requested  # noqa: E402 -- as above

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import workspaces  # noqa: E402 -- as above

RECORDED = json.loads(RECORD.read_text())
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):  # which makes its input contiguous before
    RECORDED = {each: sizes for each, sizes in RECORDED.items() if "group_norm(t." not in each}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["compute", "shapes"])
def test_operators_request_the_recorded_sizes(mode):
    with forebay.emulate("cuda", profile="h200"), patch(mode):
        workspaces.set_lifetime("call")  # as the version of the record
        try:
            known = names()
            found = {each: requested(lambda each=each: eval(each, known)) for each in RECORDED}
        finally:
            workspaces.set_lifetime(None)
    differing = {each: sizes for each, sizes in found.items() if sizes != RECORDED[each]}
    assert not differing
