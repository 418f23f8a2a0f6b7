"""Results whose size depends on values that are not computed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- needs torch

pytestmark = pytest.mark.usefixtures("with_assumptions")


def unknown(*shape):
    return torch.randn(*shape, device="cuda")


def routed(tokens, experts, chosen):
    """Return the number of tokens that each expert gets, as models with a mixture of experts compute it."""
    _, selected = unknown(tokens, experts).softmax(-1).topk(chosen, dim=-1)
    mask = torch.nn.functional.one_hot(selected, num_classes=experts).permute(2, 1, 0)
    return [torch.where(mask[each])[0].numel() for each in range(experts)]


def select(tensor, condition):
    return tensor[condition(tensor)]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: unknown(3, 4).nonzero(), (12, 2)),
        (lambda: torch.nonzero(unknown(3, 4) > 0), (12, 2)),
        (lambda: torch.isnan(unknown(3, 4)).nonzero(), (0, 2)),
        (lambda: unknown(3, 4)[unknown(3, 4) > 0], (12,)),
        (lambda: unknown(3, 4)[unknown(3) > 0], (3, 4)),
        (lambda: unknown(3, 4)[:, unknown(4) > 0], (3, 4)),
        (lambda: unknown(3, 4).masked_select(unknown(4) > 0), (12,)),
        (lambda: torch.randint(0, 5, (40,), device="cuda").unique(), (5,)),
        (lambda: unknown(40).unique(), (40,)),
        (lambda: unknown(4, 10).unique(dim=0), (4, 10)),
        (lambda: torch.randint(0, 5, (40,), device="cuda").bincount(), (5,)),
        (lambda: torch.randint(0, 5, (40,), device="cuda").bincount(minlength=9), (9,)),
        (lambda: unknown(4).repeat_interleave(torch.randint(0, 3, (4,), device="cuda")), (8,)),
        (lambda: select(unknown(6, 91).softmax(-1), lambda shares: shares > 0.05), (546,)),
        (lambda: select(unknown(6, 91).log_softmax(-1).exp(), lambda shares: shares > 0.5), (546,)),
        (lambda: select(torch.randint(-2, 2, (8,), device="cuda"), lambda labels: labels != -2), (8,)),
        (lambda: torch.tensor([1, 2, 2, 1]).cuda().unique(), (2,)),
        (lambda: torch.tensor([1, 0, 2]).cuda().nonzero(), (2, 1)),
        (lambda: unknown(6)[torch.tensor([True, False, True] * 2, device="cuda")], (4,)),
    ],
)
def test_size_is_the_upper_bound_or_what_is_known(make, shape):
    assert make().shape == shape


def test_text_that_is_cut_at_its_first_end_token_stays_whole():
    """Whisper cuts what it has generated there: an end token is assumed not to come before the padding."""
    generated = torch.cat([torch.tensor([1, 2]).cuda(), unknown(9, 50).argmax(-1)])
    padded = torch.nn.functional.pad(generated, (0, 1), value=49)
    assert padded[: (padded == 49).nonzero()[0, 0]].shape == (11,)
    assert padded[: torch.where(padded == 49)[0][0]].shape == (11,)
    assert padded[2 : (padded == 49).nonzero().flatten().tolist()[0]].shape == (9,)
    of_many = (unknown(200, 50).argmax(-1) == 49).nonzero()  # places of a label, of which there are several
    assert int(of_many[0, 0]) == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_mask_that_is_true_at_places_has_as_many_elements(dtype):
    """As a detector samples boxes: indices of a random choice are written to a mask of zeros."""
    positive = torch.where(unknown(1000) > 0)[0]
    chosen = positive[torch.randperm(positive.numel(), device="cuda")[:64]]
    mask = torch.zeros(1000, dtype=dtype, device="cuda")
    mask[chosen] = 1
    assert torch.where(mask)[0].shape == (64,)
    assert torch.where(torch.cat([mask, mask]))[0].shape == (128,)
    rows = torch.zeros(10, 20, dtype=dtype, device="cuda")
    rows[:, torch.randint(20, (3,), device="cuda")] = 1
    assert rows.nonzero().shape == (30, 2)
    rows[unknown(10) > 0] = 1
    assert rows.nonzero().shape == (200, 2)
    filled = torch.zeros(10, 20, dtype=dtype, device="cuda").index_fill(-1, torch.randint(20, (3,), device="cuda"), 1)
    assert filled.nonzero().shape == (30, 2)
    assert torch.where(torch.ones(20, dtype=dtype, device="cuda").index_fill(0, chosen[:5], 0))[0].shape == (15,)


def test_tokens_are_distributed_evenly_to_experts():
    assert routed(tokens=64, experts=8, chosen=2) == [16] * 8


def test_each_line_is_listed_once():
    for _ in range(3):
        unknown(3, 4).nonzero()
    (found,) = assumed_values.found()
    assert (found.times, found.text) == (3, "12 of 12 elements are true (nonzero), which decides a size")
    assert "unknown(3, 4).nonzero()" in found.line
