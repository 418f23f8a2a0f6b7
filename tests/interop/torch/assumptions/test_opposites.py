"""The choices among assumed values: the share of masks, and opposite values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from forebay._base.assumption_choices import AssumptionChoices  # noqa: E402 -- after the check
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

pytestmark = pytest.mark.usefixtures("with_assumptions")


@pytest.fixture(autouse=True)
def _choices_as_before():
    yield
    assumed_values.choose(AssumptionChoices())


def unknown(*shape):
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: bool(torch.isnan(unknown(3)).any()), True),
        (lambda: bool(torch.isfinite(unknown(3)).all()), False),
        (lambda: bool(unknown(()) < 100), False),
        (lambda: torch.equal(unknown(3), unknown(3)), False),
        (lambda: [unknown(()).item() for _ in range(3)], [500.0, 750.0, 875.0]),
        (lambda: unknown(4, 4).softmax(-1).tolist()[0][0], 0.75),
        (lambda: unknown(9).argmax().item(), 8),
        (lambda: torch.randint(5, 9, (4,), device="cuda").max().item(), 5),
        (lambda: (unknown(8, 8) > 0).sum().item(), 0),
        (lambda: (unknown(8, 8) > 0).nonzero().shape, (0, 2)),
        (lambda: unknown(8)[torch.isnan(unknown(8))].shape, (8,)),
        (lambda: unknown(8).unique().shape, (1,)),
        (lambda: torch.unique(unknown(8, 2), dim=0).shape, (1, 2)),
        (lambda: torch.bincount(unknown(60, 4).argmax(1), minlength=4).tolist(), [60, 0, 0, 0]),
        (lambda: torch.ones(70_000, device="cuda").eq(1).all().item(), True),  # which no assumption decides
    ],
)
def test_reads_return_the_opposite(read, expected):
    assumed_values.choose(AssumptionChoices(opposite=True))
    assert read() == expected


def test_loop_ends_at_once():
    assumed_values.choose(AssumptionChoices(opposite=True))
    turns = 0
    while unknown(()) > 1e-3:
        turns += 1
    while unknown(()).item() > 1e-3:
        turns += 1
    assert turns == 0


def test_only_the_chosen_line_gets_the_opposite():
    first, second = bool(unknown(()) < 100), None
    line = assumed_values.found()[0].line
    assumed_values.choose(AssumptionChoices(opposite=True, lines=(line,)))
    seen = []
    for _ in range(1):
        first, second = bool(unknown(()) < 100), None
        seen.append((first, second))
    assert seen == [(True, None)]  # another line with the same text


def test_share_of_masks_is_chosen():
    assumed_values.choose(AssumptionChoices(mask=0.25))
    mask = unknown(8, 8) > 0
    assert (int(mask.sum()), mask.nonzero().shape[0], unknown(8, 8)[mask].numel()) == (16, 16, 16)
    assert (unknown(100).nonzero().shape[0], unknown(100).unique().numel()) == (25, 25)
    assert torch.unique(unknown(8, 2), dim=0, return_inverse=True)[1].shape == (8,)
    assert torch.isnan(unknown(8)).sum().item() == 0  # which the operator decides


@pytest.mark.parametrize("share", [1 / 3, 0.1, 1 / 7, 1e-9, 1.0])
@pytest.mark.parametrize("count", [1, 3, 7, 100, 1001])
def test_masks_are_counted_alike(share, count):
    assumed_values.choose(AssumptionChoices(mask=share))
    mask = unknown(count) > 0
    assert int(mask.sum()) == mask.nonzero().shape[0] == int(torch.count_nonzero(mask))


@pytest.mark.parametrize(("mask", "routing"), [(0.0, "balanced"), (1.5, "balanced"), (float("nan"), "worst"), (1, "x")])
def test_nonsense_is_refused(mask, routing):
    with pytest.raises(ValueError, match="must be"):
        AssumptionChoices(mask, routing)
