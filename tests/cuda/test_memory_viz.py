"""`python -m forebay.cuda._memory_viz` and its pages; the scenes compare its texts with PyTorch's."""

from __future__ import annotations

import io
import pickle
import sys

import pytest

import forebay
from forebay.cuda import _memory_viz, memory
from forebay.snapshot.formats.native import BadSnapshot

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def recorded(clean):
    """A snapshot of two devices; only the first has a history."""
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        other = forebay.zeros(30 << 20, dtype="uint8", device="cuda:1")
        memory._record_memory_history(stacks="python")
        kept, _ = forebay.zeros(1 << 18, device="cuda"), forebay.zeros(10, device="cuda")
        yield memory._snapshot()
        memory._record_memory_history(None)
        del other, kept


@pytest.fixture
def dumped(recorded, tmp_path):
    (tmp_path / "dump.pickle").write_bytes(pickle.dumps(recorded))
    return str(tmp_path / "dump.pickle")


def run(*arguments):
    _memory_viz._main(list(arguments))


@pytest.mark.parametrize(("action", "begins"), [("stats", "Summary of segments >= 20.0MiB"), ("trace", "Device 0 ---")])
def test_texts(dumped, capsys, action, begins):
    run(action, dumped)
    assert capsys.readouterr().out.startswith(begins)


@pytest.mark.parametrize("action", ["segments", "memory"])
def test_flame_graphs(dumped, tmp_path, action):
    run(action, dumped, "-o", str(tmp_path / "made.svg"))
    text = (tmp_path / "made.svg").read_text("utf-8")
    assert text.startswith("<svg ")
    assert "test_memory_viz.py" in text


def test_a_comparison(dumped, recorded, tmp_path, capsys):
    (tmp_path / "later.pickle").write_bytes(pickle.dumps({**recorded, "segments": recorded["segments"][:1]}))
    run("compare", dumped, str(tmp_path / "later.pickle"), "-o", str(tmp_path / "made.svg"))
    address = recorded["segments"][1]["address"]
    assert capsys.readouterr().out == f"only_before = [{address}]\nonly_after = []\n"
    assert "only_before: 30.00 MiB, 100.0%" in (tmp_path / "made.svg").read_text("utf-8")


@pytest.mark.parametrize("arguments", ["trace_plot", "trace_plot -s -f", "segment_plot -d 1"])
def test_pages(dumped, tmp_path, arguments):
    run(*arguments.split(), dumped, "-o", str(tmp_path / "made.html"))
    text = (tmp_path / "made.html").read_text("utf-8")
    assert f"Memory of cuda:{1 if '1' in arguments else 0}" in text
    assert "cdn." not in text


def test_a_page_needs_one_device(recorded):
    recorded["device_traces"][1] = [dict(entry) for entry in recorded["device_traces"][0]]
    with pytest.raises(ValueError, match="there are histories of devices 0, 1: name one with `device`"):
        _memory_viz.trace_plot(recorded)
    with pytest.raises(ValueError, match="the snapshot tells nothing of device 7"):
        _memory_viz.trace_plot(recorded, 7)
    assert "Memory of cuda:1" in _memory_viz.segment_plot(recorded, 1)


def test_an_empty_snapshot_has_a_page():
    assert "Memory of cuda:0" in _memory_viz.trace_plot({"segments": [], "device_traces": []})


def test_the_standard_input(recorded, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pickle.dumps(recorded["segments"]))))
    run("stats", "-")
    assert "segments: 2\n" in capsys.readouterr().out


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(print))
    with pytest.raises(BadSnapshot, match="names a global"):
        run("stats", str(tmp_path / "evil.pickle"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["stats"]], ids=repr)
def test_arguments_that_make_no_sense(arguments, capsys):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "usage: python -m forebay.cuda._memory_viz" in capsys.readouterr().err


def test_a_script_of_the_users_draws_instead(tmp_path):
    script = tmp_path / "draw.sh"
    script.write_text('#!/bin/sh\necho "$@"; cat\n')
    script.chmod(0o755)
    assert _memory_viz.format_flamegraph("a;b 5\n", str(script)) == "--countname bytes\na;b 5\n"
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(AssertionError, match="flamegraph process exited with code 3"):
        _memory_viz.format_flamegraph("a;b 5\n", str(script))


def test_profiles_of_pytorch_are_not_read():
    with pytest.raises(forebay.Unsupported, match=r"reads what torch\.profiler recorded"):
        _memory_viz.profile_plot(None)
