"""Tokens that are routed to experts: their counts, their masks, and one-hot codes agree."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from forebay._base.assumption_choices import AssumptionChoices  # noqa: E402 -- after the check
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

pytestmark = pytest.mark.usefixtures("with_assumptions")
EXPERTS, CHOSEN = 4, 2
PARTS = {
    ("balanced", 30): [15, 15, 15, 15],
    ("balanced", 31): [16, 16, 15, 15],
    ("worst", 31): [62, 0, 0, 0],
}


@pytest.fixture(params=PARTS)
def routing(request):
    name, tokens = request.param
    assumed_values.choose(AssumptionChoices(routing=name))
    experts = torch.randn(tokens, EXPERTS, device="cuda").topk(CHOSEN).indices
    yield experts, PARTS[request.param]
    assumed_values.choose(AssumptionChoices())


def test_counts_and_masks_of_experts_agree(routing):
    experts, parts = routing
    codes = torch.nn.functional.one_hot(experts, EXPERTS)
    of_expert = codes.permute(2, 1, 0)
    counts = codes.sum((0, 1))
    assert torch.bincount(experts.view(-1), minlength=EXPERTS).tolist() == parts
    assert counts.tolist() == counts.cpu().numpy().tolist() == [each.item() for each in counts] == parts
    rounded = parts if parts[1:] == [0, 0, 0] else [parts[0]] * EXPERTS  # no mask knows what the others have
    masks = [[torch.where(of_expert[expert])[0].numel() for expert in range(EXPERTS)]]
    masks.append([of_expert.bool()[expert].nonzero().shape[0] for expert in range(EXPERTS)])
    masks.append([(experts == expert).nonzero().shape[0] for expert in range(EXPERTS)])
    masks.append([int((experts == expert).sum()) for expert in range(EXPERTS)])
    assert masks == [rounded] * 4
    assert [bool((experts == expert).any()) for expert in range(EXPERTS)] == [part > 0 for part in parts]


def test_tokens_are_split_by_their_counts(routing):
    experts, parts = routing
    tokens = torch.randn(experts.numel(), 8, device="cuda")
    counts = torch.bincount(experts.view(-1), minlength=EXPERTS)
    assert [len(each) for each in tokens.split(counts.tolist())] == parts
    names = torch.repeat_interleave(torch.arange(EXPERTS, device="cuda"), counts)
    assert names.shape == (experts.numel(),)


def test_moved_codes_have_no_expert():
    assumed_values.choose(AssumptionChoices(routing="worst"))
    try:
        codes = torch.nn.functional.one_hot(torch.randn(8, 4, device="cuda").argmax(1), 4)
        moved = codes.t().contiguous()
        assert moved[1].nonzero().shape[0] == 2
    finally:
        assumed_values.choose(AssumptionChoices())


def test_vocabulary_is_not_routed():
    """An end token does not come with the worst routing, either."""
    assumed_values.choose(AssumptionChoices(routing="worst"))
    try:
        tokens = torch.randn(4, 500, device="cuda").argmax(-1)
        assert not (tokens == 0).any()
    finally:
        assumed_values.choose(AssumptionChoices())
