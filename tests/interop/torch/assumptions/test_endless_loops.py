"""Loops that read assumed values: those that wait for one end, and long ones that end by themselves go on."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from forebay.interop.torch.assumptions import endless_loops  # noqa: E402 -- needs torch
from forebay.interop.torch.assumptions.endless_loops import LOOP_READS  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.processes import unread_values  # noqa: E402 -- as above

pytestmark = pytest.mark.usefixtures("with_assumptions")
MOST = 5 * LOOP_READS


@pytest.fixture(autouse=True)
def _no_lines_of_other_tests():
    unread_values.clear()
    yield
    unread_values.clear()


@pytest.fixture
def soon(monkeypatch):
    """A limit of reads that tests reach soon."""
    monkeypatch.setattr(endless_loops, "ENDLESS_READS", 400)


def unknown(*shape):
    return torch.randn(*shape, device="cuda")


def condition_of_a_tensor():
    turns, loss = 0, unknown(())
    while loss > 1e-3:
        loss, turns = unknown(()), turns + 1
    return turns


def condition_of_a_number():
    turns = 0
    while unknown(()).item() > 1e-6:
        turns += 1
    return turns


def flag_that_no_value_sets():
    turns, done = 0, torch.zeros(4, dtype=torch.bool, device="cuda")
    while not done.all():
        done = done | (unknown(4, 9).argmax(1) == 3)
        turns += 1
    return turns


def break_below_a_tolerance():
    turns = 0
    while True:
        turns += 1
        error = unknown(3).norm().item()
        if error < 1e-4:
            break
    return turns


def break_above_a_limit():
    for turns in itertools.count():
        score = unknown(3).mean().item()
        if score > 195:
            return turns
    return 0


def small_change():
    turns, before = 0, float("inf")
    while True:
        turns += 1
        now = unknown(3).sum().item()
        if abs(before - now) < 1e-6:
            break
        before = now
    return turns


def patience():
    turns, best, waited = 0, float("inf"), 0
    while True:
        turns += 1
        loss = unknown(()).item()
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
        if waited > 5:
            break
    return turns


def number_of_a_token():
    turns, token = 0, -1
    while token != 50:
        token = unknown(51).argmax().item()
        turns += 1
    return turns


def no_equal_labels():
    """K-means: the labels change until they do not."""
    turns, labels = 0, None
    while True:
        new = torch.cdist(unknown(20, 3), unknown(4, 3)).argmin(1)
        turns += 1
        if labels is not None and torch.equal(new, labels):
            return turns
        labels = new


def helper_that_decides():
    def has_converged():
        return bool((unknown(3) - unknown(3)).abs().max() < 1e-4)

    turns = 0
    while not has_converged():
        turns += 1
    return turns


WAITING = [
    condition_of_a_tensor, condition_of_a_number, flag_that_no_value_sets, break_below_a_tolerance,
    break_above_a_limit, small_change, patience, number_of_a_token, no_equal_labels, helper_that_decides,
]  # fmt: skip


@pytest.mark.parametrize("loop", WAITING)
def test_loop_that_waits_for_a_value_ends(loop):
    assert 1 <= loop() <= MOST
    assert loop() <= MOST  # also once more: each entry has an end
    assert unread_values.lines() == ()


def test_condition_holds_for_a_known_number_of_turns():
    assert condition_of_a_tensor() == LOOP_READS


LIBRARY = """
def solve(make):
    turns = 0
    while make() > 0.5:
        turns += 1
        if turns >= 600:
            break
        error = [make().item() for _ in range(100)]
        if make().item() > 500 or error[0] > 500:
            raise ValueError("the error is too large")
    return turns
"""


def test_reads_of_a_library_are_counted_at_each_of_its_lines(tmp_path):
    path = tmp_path / "site-packages" / "solver.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    library = {}
    exec(compile(LIBRARY, str(path), "exec"), library)  # as an import from there does
    assert library["solve"](lambda: unknown(())) == LOOP_READS


def step(model, optimizer):
    loss = model(unknown(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def counted(steps, model, optimizer):
    done, losses = 0, []
    while done < steps:
        loss = step(model, optimizer)
        if torch.isnan(loss):
            break
        losses.append(loss.item())
        done += 1
    return done


def counted_in_a_break(steps, model, optimizer):
    done = 0
    while True:
        loss = step(model, optimizer).item()
        assert 0 <= loss < 10
        done += 1
        if done % 10 == 0 and loss > 1e6:
            return -1
        if done >= steps:
            break
    return done


def until_the_data_ends(steps, model, optimizer):
    batches, done = iter(range(steps)), 0
    while True:
        try:
            next(batches)
        except StopIteration:
            break
        if step(model, optimizer).item() > 1e6:
            break
        done += 1
    return done


def entered_again_and_again(steps, model, optimizer):
    done = 0
    for _ in range(steps // 20):
        turns = 0
        while unknown(()).item() > 1e-6:  # has no other end
            turns += 1
        assert turns <= LOOP_READS
        done += 20
    return done


def generator_without_an_end(steps, model, optimizer):
    def losses():
        while True:
            yield step(model, optimizer).item()

    return len([*itertools.islice(losses(), steps)])


LONG = [counted, counted_in_a_break, until_the_data_ends, entered_again_and_again, generator_without_an_end]


@pytest.mark.parametrize("loop", LONG)
def test_long_loop_that_ends_by_itself_goes_on(loop, soon):
    """It reads in each turn, and its memory does not change."""
    model = torch.nn.Linear(4, 4).cuda()
    assert loop(1000, model, torch.optim.SGD(model.parameters())) == 1000
    assert unread_values.lines() == ()


def wait_for_what_never_comes():
    ready = False
    while not ready:
        ready = unknown(2).sum().item() == "ready"


def test_loop_that_nothing_ends_is_found(soon):
    with pytest.raises(
        DataDependent, match=r"a loop reads assumed values without an end: 400 times at .*ready = unkno"
    ):
        wait_for_what_never_comes()
    assert len(unread_values.lines()) == 1


def test_loop_of_many_turns_outside_a_while_is_no_endless_one(soon):
    for _ in range(1000):
        unknown(2).sum().item()
    assert unread_values.lines() == ()
