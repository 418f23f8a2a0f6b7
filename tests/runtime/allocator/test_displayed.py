"""Statistics that notebooks display: everywhere else they are the dict and the str that they contain."""

from __future__ import annotations

import copy
import json
import pickle
import pprint
import subprocess
import sys
from collections import OrderedDict

import pytest
from support.markup import check_markup

import forebay
from forebay import accelerator, cuda, memory
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.displayed import OrderedStatistics, Statistics, SummaryText
from forebay.runtime.devices.current import opened_for

EVIL = {"<script>alert(1)</script>.current": 1, "allocated_bytes.all.current": 3 << 20, "num_ooms": 2}


@pytest.fixture
def flat(emulated):
    forebay.zeros(1000, device="cuda:0")
    return statistics.flat_stats(opened_for("cuda:0").allocator)


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        (lambda: memory.memory_stats("cuda:0"), dict),
        (lambda: cuda.memory_stats(0), OrderedDict),
        (lambda: accelerator.memory_stats(0), OrderedDict),
        (cuda.host_memory_stats, OrderedDict),
        (lambda: memory.host_memory_stats("cuda:0"), dict),
    ],
)
def test_statistics_are_like_their_plain_dict(flat, call, plain):
    found = call()
    same = plain(found.items())
    assert isinstance(found, plain)
    assert found == same
    assert same == found
    assert repr(found) == repr(same)
    assert str(found) == str(same)
    assert pprint.pformat(found) == pprint.pformat(same)
    assert json.dumps(found) == json.dumps(same)
    for copied in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert type(copied) is plain
        assert copied == same
    assert pickle.dumps(found) == pickle.dumps(Statistics(same) if plain is dict else OrderedStatistics(same))
    check_markup(found._repr_html_())


def test_pickled_statistics_can_be_read_without_forebay(flat):
    data = pickle.dumps((cuda.memory_stats(0), cuda.memory_summary(0)))
    program = "import sys, pickle; sys.modules['forebay'] = None; print(len(pickle.load(sys.stdin.buffer)[0]))"
    printed = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert int(printed.stdout) == len(flat)


def test_statistics_before_the_first_use():
    assert cuda.memory_stats() == {}
    assert "not in use" in cuda.memory_stats()._repr_html_()


def test_hostile_key_is_escaped():
    markup = Statistics(EVIL)._repr_html_()
    check_markup(markup)
    assert "&lt;script&gt;" in markup
    assert "3.00 MiB" in markup
    assert "num_ooms" in markup


def test_summary_of_a_pytorch_module_is_exactly_a_str(flat):
    assert type(cuda.memory_summary(0)) is str


def test_summary_is_a_str(flat):
    found = memory.memory_summary("cuda:0")
    assert isinstance(found, str)
    assert found == str(found)
    assert hash(found) == hash(str(found))
    assert repr(found) == repr(str(found))
    assert type(pickle.loads(pickle.dumps(found))) is type(copy.deepcopy(found)) is str
    assert json.loads(json.dumps(found)) == found
    check_markup(found._repr_html_())


def test_summary_text_is_escaped():
    check_markup(SummaryText("<script>alert(1)</script>")._repr_html_())
