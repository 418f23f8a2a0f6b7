"""Reads of values that are not computed: what programs receive, and the list of their lines."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import numpy as np  # noqa: E402 -- after the check

from forebay.interop.torch.processes import assumed_values, unread_values  # noqa: E402 -- needs torch

pytestmark = pytest.mark.usefixtures("with_assumptions")


@pytest.fixture(autouse=True)
def _no_lines_of_other_tests():
    unread_values.clear()


def unknown(*shape):
    return torch.randn(*shape, device="cuda")


def train(steps=4):
    """Return what a loop of training prints: the usual reads."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    best, seen = float("inf"), []
    for _ in range(steps):
        inputs, labels = unknown(8, 16), torch.randint(0, 10, (8,), device="cuda")
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
        assert torch.isfinite(loss)
        assert not torch.isnan(outputs).any()
        assert outputs.softmax(-1).sum(-1).allclose(torch.ones(8, device="cuda"))
        improves = loss.item() < best
        best = min(best, loss.item())
        right = (outputs.argmax(1) == labels).sum().item()
        seen.append((improves, f"{loss:.3f}", float(norm), right, outputs.argmax(1).tolist()))
    return seen


def test_every_read_of_a_training_loop_is_answered():
    seen = train()
    assert all(improves for improves, *_ in seen)
    assert all(1 <= float(text) <= 2 and 1 <= norm <= 2 for _, text, norm, *_ in seen)
    assert all(0 <= right <= 8 and all(0 <= each < 10 for each in classes) for *_, right, classes in seen)
    lines = [each.line for each in assumed_values.found()]
    assert any("loss.item() < best" in each for each in lines)
    assert all("test_reads.py" in each for each in lines)
    assert unread_values.lines() == ()


def test_two_runs_are_equal():
    first = train()
    assumed_values.clear()
    assert train() == first


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: bool(torch.isnan(unknown(3)).any()), False),
        (lambda: bool(torch.isinf(unknown(3)).any()), False),
        (lambda: bool(torch.isfinite(unknown(3)).all()), True),
        (lambda: bool((~torch.isfinite(unknown(3))).any()), False),
        (lambda: bool((unknown(()) == 3).item()), False),
        (lambda: bool((unknown(()) != 3).item()), True),
        (lambda: bool(torch.isin(unknown(3), torch.ones(1, device="cuda")).any()), False),
        (lambda: bool((unknown(3) > 0).any()), False),
        (lambda: bool((unknown(3) > 0).all()), True),
        (lambda: bool((unknown(3) > -1e9).any()), True),
        (lambda: bool((unknown(3) > 65504).any()), False),
        (lambda: bool((unknown(3) <= torch.full((3,), -1e9, device="cuda")).all()), False),
        (lambda: (unknown(8, 8) < -1e9).sum().item(), 0),
        (lambda: (torch.arange(3).cuda() <= unknown(3, 4).argmax(-1)).int().bool().tolist(), [True] * 3),
        (lambda: bool(unknown(()) < 100), True),
        (lambda: bool(unknown(()) > 100), False),
        (lambda: bool(unknown(()) < 1e-3), False),
        (lambda: bool(unknown(9).abs().min() > 1e-11), True),
        (lambda: bool((unknown(9).min() < 1e-11).logical_not()), True),
        (lambda: bool(torch.isnan(unknown(9)).logical_not().all()), True),
        (lambda: bool(unknown(()) < unknown(())), True),
        (lambda: bool(unknown(()) > unknown(())), False),
        (lambda: torch.equal(unknown(3), unknown(3)), True),
        (lambda: torch.equal(unknown(9).min() < 1e-11, torch.ones((), dtype=torch.bool, device="cuda")), False),
        (lambda: torch.equal(torch.isnan(unknown(3)), torch.ones(3, dtype=torch.bool, device="cuda")), False),
        (lambda: torch.allclose(unknown(3), unknown(3)), True),
        (lambda: torch.randint(5, 9, (4,), device="cuda").min().item(), 5),
        (lambda: torch.randint(5, 9, (4,), device="cuda").max().item(), 8),
        (lambda: bool((torch.randint(5, 9, (4,), device="cuda") < 9).all()), True),
        (lambda: bool((torch.randint(5, 9, (4,), device="cuda") >= 9).any()), False),
        (lambda: unknown(2, 7).argmax(-1).tolist(), [0, 0]),
        (lambda: unknown(2, 8).softmax(-1).sum(-1).tolist(), [1.0, 1.0]),
        (lambda: torch.ones(70_000, device="cuda").eq(1).all().item(), True),
        (lambda: torch.full((70_000,), 3, device="cuda").sum().item(), 210_000),
        (lambda: (unknown(8, 8) > 0).sum().item(), 64),
        (lambda: torch.isnan(unknown(8, 8)).sum().item(), 0),
        (lambda: np.isfinite(unknown(4).cpu().numpy()).all(), True),
        (lambda: len(str(unknown(4))) > 0, True),
    ],
)
def test_read_returns_what_the_table_says(read, expected):
    assert read() == expected


def test_checks_pass():
    """A step of a solver checks that its time grows, as the sum of two unknown numbers."""
    time, step = unknown(()), unknown(())
    if not time + step > time:
        raise AssertionError
    if time < step or time <= step:
        raise AssertionError
    assert not time <= step


def test_constant_of_any_size_is_not_listed():
    assert torch.zeros(1 << 20, device="cuda").any().item() is False
    assert assumed_values.found() == ()


def test_part_that_is_written_changes_what_is_assumed():
    ids = torch.zeros(4, 100, dtype=torch.long, device="cuda")
    ids[:, 3] = unknown(4, 50).argmax(-1)
    assert ids.max().item() == 49
    assert ids.min().item() == 0


def test_end_token_never_comes():
    """A loop of generation runs to its limit."""
    tokens = torch.randint(5, 1000, (2, 8), device="cuda")
    done = torch.zeros(2, dtype=torch.bool, device="cuda")
    for _ in range(6):
        new = unknown(2, 1000).softmax(-1).multinomial(1)
        done = done | (new[:, 0] == 2)
        tokens = torch.cat([tokens, new], 1)
        if done.all():
            break
    assert tokens.shape == (2, 14)


def test_a_number_falls_only_when_its_tensor_has_changed():
    for numbers in (unknown(2, 2), unknown(1 << 19)):  # the host's copies of the second are written when they are read
        loss, seen, before = unknown(()), [], []
        for _ in range(3):
            one, other = numbers.cpu(), numbers.clone().half().cpu()
            seen += [numbers[0].flatten()[0].item(), one.flatten()[0].item(), other.flatten()[0].item()]
            assert len({repr(numbers) for _ in range(2)}) == 1
            before.append((loss.item(), float(loss), f"{loss:.6f}"))
        assert len({round(each, 3) for each in seen}) == 1
        assert len(set(before)) == 1
        with torch.inference_mode():
            loss.data.add_(1)
        read = [each.item() for each in (loss, unknown(()), loss)]
        assert read[0] == read[2] > read[1]


def test_texts_of_a_batch_end_at_the_limit_only():
    done, steps = torch.zeros(4, dtype=torch.bool, device="cuda"), 0
    while not done.all() and steps < 30:
        tokens = torch.randint(100, (4,), device="cuda")
        done |= tokens == 3
        assert not (tokens == 3).all()
        steps += 1
    assert steps == 30


def test_beams_run_to_their_limit():
    """A search of beams ends when no score can be better than the finished ones, of which there is none."""
    scores, finished = unknown(2, 3), torch.zeros(2, 3, dtype=torch.bool, device="cuda")
    tokens = 0
    while tokens < 6:
        tokens += 1
        ended = torch.isin(unknown(2, 3).argmax(-1, keepdim=True), torch.tensor([2], device="cuda"))
        finished = torch.cat((finished, ended), 1).gather(1, unknown(2, 4).topk(3)[1])
        worst = torch.where(finished, scores.min(1, keepdim=True)[0], -1e9)
        if not torch.any(scores[:, :1] > worst):
            break
    assert tokens == 6
