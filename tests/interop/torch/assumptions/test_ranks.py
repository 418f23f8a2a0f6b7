"""Indices and values that an operator returns once each are different where a program reads several of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

pytestmark = pytest.mark.usefixtures("with_assumptions")


def unknown(*shape):
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: unknown(2, 9).topk(3)[1], [[0, 1, 2]] * 2),
        (lambda: (unknown(2, 9) + 1).topk(3, dim=-1)[1].to(torch.int32), [[0, 1, 2]] * 2),
        (lambda: unknown(2, 9).topk(3)[1][1, 1:], [1, 2]),
        (lambda: unknown(2, 9).topk(3)[1].mT, [[0, 0], [1, 1], [2, 2]]),
        (lambda: unknown(2, 4).sort(descending=True)[1], [[0, 1, 2, 3]] * 2),
        (lambda: unknown(4).argsort(), [0, 1, 2, 3]),
        (lambda: torch.randperm(4, device="cuda"), [0, 1, 2, 3]),
        (lambda: unknown(2, 9).softmax(-1).multinomial(3), [[0, 1, 2]] * 2),
        (lambda: (unknown(4) > 0).nonzero().flatten(), [0, 1, 2, 3]),
        (lambda: torch.randint(5, 8, (50,), device="cuda").unique(), [5, 6, 7]),
        (lambda: unknown(2, 9).topk(3)[1].clamp(max=1), [[0] * 3] * 2),  # new elements
        (lambda: unknown(9, 2).topk(3, dim=0)[1], [[0] * 2] * 3),
        (lambda: unknown(2, 9).softmax(-1).multinomial(3, replacement=True), [[0] * 3] * 2),
        (lambda: unknown(2, 9).topk(3)[1].max(-1)[0], [8, 8]),
    ],
)
def test_indices_of_one_row_differ(make, read):
    assert make().tolist() == read
    assert make().cpu().tolist() == read


def test_candidates_of_a_beam_search_differ():
    """Whisper collects them so: each text with each of its best tokens, one element at a time."""
    scores = unknown(2, 9).log_softmax(-1)
    candidates = {(text, token.item()) for text in range(2) for token in scores[text].topk(3)[1]}
    assert len(candidates) == 6
