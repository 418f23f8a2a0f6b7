"""Suggested changes of a program, each of which a replay proves, compared with runs of the changed program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.changed_programs import Step
from support.snapshot_programs import MIB, dumped
from support.snapshot_scenes import training

from forebay import OutOfMemory, simulate
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay.changes import Kind, parse_changes
from forebay.snapshot.replay.program_advice import advise
from forebay.snapshot.replay.remedies import find_remedies
from forebay.snapshot.report.explanation import explanation


def advice_of(snapshot, *texts):
    return explanation(snapshot, asked=[parse_changes(text) for text in texts]).what_if


def by_function(advice):
    """Return the change of each suggestion as text, by the function of its site."""
    return {each.label.rpartition(" ")[2]: str(each.changes[0])[len(each.label) + 1 :] for each in advice.suggested}


def test_suggestions_are_the_smallest_changes_that_fit():
    advice = advice_of(Step().snapshot())
    assert by_function(advice) == {
        "layer": "blocks=11", "gradient": "size=0.75", "logits": "freed-before=backward",
    }  # fmt: skip
    assert all(each.fits and each.proved and not each.outcome.refused for each in advice.suggested)
    assert (advice.cut, advice.replays > 3) == (False, True)
    assert Step(layers=11).run()[1]
    assert not Step(layers=12).run()[1]
    assert Step(gradient_mib=0.75 * 90).run()[1]
    assert Step(keeps_logits=False).run()[1]


def test_nothing_is_suggested_without_an_error_or_where_nothing_fits():
    assert advice_of(Step(layers=2, gradient_mib=1).snapshot()).suggested == ()
    hopeless = advice_of(Step(layers=1, logits_mib=1, weight_mib=1, gradient_mib=9000, total_mib=600).snapshot())
    assert (hopeless.suggested, hopeless.cut) == ((), False)


def test_nothing_is_suggested_if_the_replay_does_not_reproduce_the_error():
    """The recording is by a first-fit allocator."""
    advice = advice_of(replace(training(), device="cuda:0"), "* size=0.1")
    assert (advice.suggested, advice.replays) == ((), 0)
    assert not advice.asked[0].proved


def test_machine_is_not_replayed():
    with pytest.raises(ValueError, match="cpu: the machine's memory has no allocator to replay: leave out --what-if"):
        advice_of(training(), "* size=0.1")


def test_margin_is_twice_the_error_of_the_replay():
    """With a recorded peak that is 25 MiB higher, 50 MiB of the memory do not count."""
    snapshot = Step().snapshot()
    remedies = find_remedies(snapshot)
    failed = remedies.baseline.refused[0]
    off = replace(
        remedies, fidelity=replace(remedies.fidelity, recorded_peak=remedies.fidelity.recorded_peak + 25 * MIB)
    )
    exact, wary = (advise(snapshot, each, failed + 1, failed) for each in (remedies, off))
    assert (by_function(exact)["gradient"], by_function(wary)["gradient"]) == ("size=0.75", "size=0.55")
    assert max(each.outcome.peak_reserved for each in wary.suggested) <= 1150 * MIB


def test_search_ends_at_its_limit_and_says_so():
    snapshot = Step().snapshot()
    remedies = find_remedies(snapshot)
    failed = remedies.baseline.refused[0]
    entries = 20  # the allocations up to the error, one less with a layer less
    spent = advise(snapshot, remedies, failed + 1, failed, budget=entries - 2)
    assert (spent.suggested, spent.cut, spent.replays) == ((), True, 0)
    first = advise(snapshot, remedies, failed + 1, failed, budget=entries)
    assert ([each.changes[0].kind for each in first.suggested], first.cut, first.replays) == ([Kind.BLOCKS], True, 1)
    asked = advise(snapshot, remedies, failed + 1, failed, budget=0, asked=[parse_changes("layer size=0.5")])
    assert asked.asked[0].fits


def test_leak_is_the_first_that_is_freed():
    """A list keeps a result of each step."""
    gpu = simulate.Device(400 * MIB)
    gpu.record_history()

    def step():
        keep()
        temporary = [gpu.allocate((5 + number) * MIB) for number in range(6)]
        for address in temporary:
            gpu.free(address)

    def keep():
        gpu.allocate(25 * MIB)

    def train():
        for _ in range(100):
            step()

    with pytest.raises(OutOfMemory):
        train()
    (snapshot,) = torch_pickle.parse(dumped(gpu.snapshot()))
    advice = advice_of(snapshot)
    leak = advice.suggested[-1]
    assert (leak.label.rpartition(" ")[2], leak.changes[0].when) == ("keep", leak.label)
    assert leak.blocks_left == 1
    assert "step" not in {each.label for each in advice.suggested if each.changes[0].kind == Kind.FREED_BEFORE}


def test_weights_are_not_said_to_be_freed():
    """No block of `weight` was ever freed, and no call of a module allocated them."""
    advice = advice_of(Step(weight_mib=150, layer_mib=20).snapshot())
    freed = [each.label for each in advice.suggested if each.changes[0].kind == Kind.FREED_BEFORE]
    assert not any(label.endswith("weight") for label in freed)


def test_question_without_an_error_is_answered_by_the_peak():
    less, none, more = advice_of(
        Step(layers=2, gradient_mib=1).snapshot(),
        "logits size=0.1",
        "layer freed-before=layer; * size=1",
        "logits size=2",
    ).asked
    assert (less.fits, less.proved, less.saved > 100 * MIB) == (None, True, True)
    assert (none.fits, more.saved < 0, more.proved) == (None, True, False)
