"""Changes of a program as text, and the stacks that they name."""

from __future__ import annotations

import re

import pytest
from support.changed_programs import Step

from forebay.records.sites import find_sites
from forebay.snapshot.replay.changes import Change, Kind, can_apply, matching_stacks, parse_changes

SNAPSHOT = Step().snapshot()


def named(text):
    """Return the labels of the sites of the allocations that a text names."""
    sites = find_sites(SNAPSHOT)
    stacks = matching_stacks(SNAPSHOT, sites, text, ())
    return {sites.labels[sites.of_stack[stack]].rpartition(" ")[2] for stack in stacks[:-1].nonzero()[0]}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("a.py:3 size=0.5", [Change("a.py:3", Kind.SIZE, 0.5)]),
        ("a.py:3 f size = 25%", [Change("a.py:3 f", Kind.SIZE, 0.25)]),
        ("* SIZE=3/4;", [Change("*", Kind.SIZE, 0.75)]),
        ("a size=.5; b blocks=10", [Change("a", Kind.SIZE, 0.5), Change("b", Kind.BLOCKS, 10)]),
        ("a.py:3 freed-before=b.py:4 g", [Change("a.py:3", Kind.FREED_BEFORE, when="b.py:4 g")]),
        ("a.py:3 freed_before=1,234", [Change("a.py:3", Kind.FREED_BEFORE, when="1,234")]),
    ],
)
def test_changes_are_parsed(text, changes):
    assert [*parse_changes(text)] == changes
    assert [*parse_changes("; ".join(map(str, changes)))] == changes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no change: write SITE size=0.5, SITE blocks=4 or SITE freed-before=WHEN"),
        (" ; ", "'' is no change"),
        ("train.py:31", "'train.py:31' is no change"),
        ("size=0.5", "'size=0.5' is no change"),
        ("a sise=1", "'sise' is no change; did you mean 'size'?"),
        ("a size=-1", "size=-1 is no factor: write a number, a share or a fraction"),
        ("a size=1/0", "size=1/0 is no factor"),
        ("a size=nan", "size=nan is no factor"),
        ("a size=1001", "size=1001 is too large: a factor is at most 1,000"),
        ("a blocks=1.5", "blocks=1.5 is no number of blocks: write an integer"),
        ("a blocks=²", "blocks=² is no number of blocks"),
        ("a" * 5000 + " size=1", "a change of 5,007 characters is too long: the limit is 4,096"),
    ],
)
def test_other_texts_are_refused_with_the_form(text, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        parse_changes(text)


def test_text_names_sites_at_the_ends_of_words():
    layer = next(label for label in find_sites(SNAPSHOT).labels if label.endswith(" layer"))
    assert named("layer") == named(layer) == named(layer.rpartition("/")[2]) == {"layer"}
    assert named("*") >= {"layer", "logits", "gradient", "weight"}
    for text in ("laye", "ayer", layer[:-7]):
        with pytest.raises(ValueError, match="no site of cuda:0 matches"):
            named(text)


def test_line_of_a_library_after_the_site_is_ignored():
    assert named("layer → torch/nn/modules/linear.py:125") == {"layer"}


def test_callers_are_named_where_no_site_is():
    assert named("forward") >= {"layer", "logits"}
    assert "gradient" not in named("forward")


def test_error_names_the_sites_with_the_most_memory():
    with pytest.raises(ValueError, match="those with the most memory: “big”, “small”"):
        matching_stacks(SNAPSHOT, find_sites(SNAPSHOT), "nosuch", ("big", "small"))


@pytest.mark.parametrize(
    ("text", "applies"),
    [
        ("layer size=1", True),
        ("nosuch size=1", False),
        ("layer freed-before=error", True),
        ("layer freed-before=3", True),
        ("layer freed-before=nosuch", False),
        ("layer size=1; nosuch size=1", False),
    ],
)
def test_changes_apply_to_devices_that_have_what_they_name(text, applies):
    assert can_apply(SNAPSHOT, parse_changes(text)) is applies


def test_no_device_without_an_error_has_blocks_freed_before_it():
    assert not can_apply(Step(layers=2).snapshot(), parse_changes("layer freed-before=error"))
