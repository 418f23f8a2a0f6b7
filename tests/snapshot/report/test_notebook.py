"""Snapshots and summaries as notebooks display them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.markup import check_markup
from support.report_pages import SCENARIOS, snapshot_of

from forebay.snapshot.analysis.summary import summary


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_snapshot_of_every_scenario(scenario):
    snapshot = snapshot_of(scenario)
    check_markup(snapshot._repr_html_())
    check_markup(summary(snapshot)._repr_html_())


def test_hostile_names_are_escaped():
    markup = snapshot_of("evil")._repr_html_()
    assert "&lt;script&gt;alert(1)" in markup


def test_snapshot_that_cannot_be_analysed_shows_the_reason():
    broken = replace(snapshot_of("training"), blocks=np.empty(3))
    check_markup(broken._repr_html_())
    assert "cannot be analysed: " in broken._repr_html_()


def test_markup_of_a_long_history_is_small():
    assert len(snapshot_of("training")._repr_html_()) < 60_000
