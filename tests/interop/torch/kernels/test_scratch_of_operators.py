"""Sizes that operators request besides their results, as PyTorch 2.15's CUDA build does over the oracle."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.requested_sizes import requested  # noqa: E402 -- as above

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.interop.torch import patch  # noqa: E402 -- as above

# Expressions of t (float32), h (float16), i (int64), b (bool), all 40 x 50, and s (float32 without dimensions).
REQUESTED = {
    "(s > 0).sum()": "1 8 8", "2 ** t": "8000 8", "1 ** t": "8000", "True ** t": "8000 1", "2.5 ** i": "8000 8",
    "torch.float_power(2, t)": "16000 16000 8", "torch.where(b, t, h)": "8000 8000", "torch.where(b, t, s)": "8000",
    "torch.where(b, h, s)": "2 4000", "torch.where(s > 0, t, i)": "1 8000 8000",
    "torch.where(b, torch.tensor(1.0), h)": "2 4000", "torch.normal(t, 1.0)": "8000 8000",
    "torch.normal(0.0, t)": "4 1 8000 4 1 4", "torch.normal(t, t)": "4 1 8000 4 1",
    "torch.multinomial(t, 1)": "320 4 4 1 1 1 160 40 1 1 8000",
    "torch.multinomial(t, 3)": "960 4 4 1 1 1 160 40 1 1 8000 480",
    "torch.multinomial(t, 3, replacement=True)": "960 8000 8000", "torch.isin(i, i[0, :5])": "2000 10000 2000",
    "torch.isin(i, i, assume_unique=True)": "2000 32000 32000 32000 32000 4000 3999 4000",
    "t.median()": "8000 16000 16000 1 4", "t.nanmedian()": "8000 16000 16000 2000 8 16000 8 4 8 4",
    "t.mode()": "160 320", "t.mode(0)": "200 400 8000", "t.scatter_reduce(0, i, t, 'mean')": "8000 8000 8000 2000",
    "t.index_reduce(0, i[:, 0], t, 'mean')": "8000 8000 8000 2000", "t.renorm(2, 0, 1.0)": "8000 160",
    "h.renorm(2, 0, 1.0)": "4000 160 80",
    "torch.nn.functional.embedding(i, t, max_norm=1.0)": "16000 16000 16000 16000 16000 8 1023 400000",
    "torch.randperm(1000, device='cuda')": "8000 8 8000 4000 4000 1",
    "torch.randperm(100000, device='cuda')": "800000 8 800000 800000 800000 1633279",
    "torch.nn.functional.unfold(t.view(1, 2, 20, 50), 3)": "8000 62208",
    "torch.vander(t[0])": "10000 9800 9800 10000",
    "torch.nn.functional.embedding_bag(i, t, mode='sum')": "320 320 16000 8000",
    "torch.nn.functional.embedding_bag(i, t, mode='max')": "320 320 16000 8000 16000",
    "torch.zeros(2, 5000, device='cuda').sort()": "40000 40000 80000 80000 80000 40000 131071 4607",
    "torch.zeros(200, 5000, device='cuda').sort()": "4000000 4000000 8000000 8000000 12000255",
    "torch.zeros(5000, 3, device='cuda').sort(0)":
        "60000 60000 120000 60000 60000 120000 120000 120000 60000 191999 5631",
    "torch.bincount(i[0])": "8 8 8", "torch.nn.functional.nll_loss(t, i[:, 0])": "4 4 320",
    "torch.nonzero_static(b, size=10)": "160 4 8", "torch._foreach_max([t, t])": "24 4 4 8",
    "t[:, :3].cumsum(1)": "480 480", "t.equal(t + 1)": "8000 2000 1", "i.unique()": "16000 1 16000 8 1023",
    # Arguments that are not contiguous are copied.
    "t.t().softmax(1)": "8000 8000", "t.t().log_softmax(1)": "8000 8000",
    "torch.nn.functional.cross_entropy(t.t(), i[0])": "8000 8000 4 4",
    "torch.nn.functional.multi_margin_loss(t.t(), i[0])": "4 8000 200",
    "torch.nn.functional.multilabel_margin_loss(t.t(), i.t())": "16000 8000 8000 200 4",
    "torch.nn.functional.nll_loss(t.view(2, 4, 10, 25).mT, i.view(2, 4, 10, 25)[:, 0].mT)": "4 4 8000 4000",
    "torch.ops.aten._softmax_backward_data(t.t(), t.t(), 1, torch.float32)": "8000 8000 8000 8000",
    "torch.ops.aten._log_softmax_backward_data(t.t(), t.t(), 1, torch.float32)": "8000 8000 8000",
    "torch.ops.aten.nll_loss_backward(s, t, i[:, 0], None, 1, -100, s)": "8000 320",
}  # fmt: skip


@pytest.fixture(scope="module")
def names():
    with forebay.emulate("cuda", profile="h200"), patch():
        t = torch.ones(40, 50, device="cuda")
        yield {"torch": torch, "t": t, "h": t.half(), "i": torch.zeros(40, 50, dtype=torch.long, device="cuda"),
               "b": t > 0, "s": torch.ones((), device="cuda")}  # fmt: skip


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("expression", REQUESTED)
def test_operator_requests_the_sizes_of_the_cuda_build(names, expression):
    assert requested(lambda: eval(expression, names)) == REQUESTED[expression]


def test_selection_by_a_mask_finds_its_places_first(names):
    places = 40 * 50 * 2 * 8
    assert requested(lambda: names["t"][names["b"]]) == f"4 1 {places} 1023 8000"
    assert requested(lambda: names["t"].masked_select(names["b"])) == f"4 1 {places} 1023 8000"
