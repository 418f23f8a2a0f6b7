"""`python -m forebay.cuda._memory_viz` and its pages; the scenes compare its text output with PyTorch's."""

from __future__ import annotations

import io
import pickle
import sys

import pytest

import forebay
from forebay.cuda import _memory_viz, memory

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def snapshot(clean):
    """Yield a snapshot of two devices, of which only the first has a history."""
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        other = forebay.zeros(30 << 20, dtype="uint8", device="cuda:1")
        memory._record_memory_history(stacks="python")
        kept, _ = forebay.zeros(1 << 18, device="cuda"), forebay.zeros(10, device="cuda")
        yield memory._snapshot()
        memory._record_memory_history(None)
        del other, kept


@pytest.fixture
def dumped(snapshot, tmp_path):
    (tmp_path / "dump.pickle").write_bytes(pickle.dumps(snapshot))
    return str(tmp_path / "dump.pickle")


def run(*arguments):
    _memory_viz._main(list(arguments))


@pytest.mark.parametrize(("action", "start"), [("stats", "Summary of segments >= 20.0MiB"), ("trace", "Device 0 ---")])
def test_stats_and_trace_print_text(dumped, capsys, action, start):
    run(action, dumped)
    assert capsys.readouterr().out.startswith(start)


@pytest.mark.parametrize("action", ["segments", "memory"])
def test_segments_and_memory_write_flame_graphs(dumped, tmp_path, action):
    run(action, dumped, "-o", str(tmp_path / "output.svg"))
    text = (tmp_path / "output.svg").read_text("utf-8")
    assert text.startswith("<svg ")
    assert "test_memory_viz.py" in text


def test_compare_draws_segments_of_one_snapshot_only(dumped, snapshot, tmp_path, capsys):
    (tmp_path / "later.pickle").write_bytes(pickle.dumps({**snapshot, "segments": snapshot["segments"][:1]}))
    run("compare", dumped, str(tmp_path / "later.pickle"), "-o", str(tmp_path / "output.svg"))
    address = snapshot["segments"][1]["address"]
    assert capsys.readouterr().out == f"only_before = [{address}]\nonly_after = []\n"
    assert "only_before: 30.00 MiB, 100.0%" in (tmp_path / "output.svg").read_text("utf-8")


@pytest.mark.parametrize("arguments", ["trace_plot", "trace_plot -s -f", "segment_plot -d 1"])
def test_plots_write_offline_pages(dumped, tmp_path, arguments):
    run(*arguments.split(), dumped, "-o", str(tmp_path / "output.html"))
    text = (tmp_path / "output.html").read_text("utf-8")
    assert f"Memory of cuda:{1 if '1' in arguments else 0}" in text
    assert "cdn." not in text


def test_page_shows_all_devices_with_a_history_or_the_selected_one(snapshot):
    snapshot["device_traces"][1] = [dict(entry) for entry in snapshot["device_traces"][0]]
    page = _memory_viz.trace_plot(snapshot)
    assert page.count("<article") == 2
    assert page.index("Memory of cuda:0") < page.index("Memory of cuda:1")
    with pytest.raises(ValueError, match="the snapshot has no data for device 7"):
        _memory_viz.trace_plot(snapshot, 7)
    assert "Memory of cuda:1" in _memory_viz.segment_plot(snapshot, 1)


def test_page_of_empty_snapshot():
    assert "Memory of cuda:0" in _memory_viz.trace_plot({"segments": [], "device_traces": []})


def test_dash_reads_standard_input(snapshot, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pickle.dumps(snapshot["segments"]))))
    run("stats", "-")
    assert "segments: 2\n" in capsys.readouterr().out


def test_pickle_with_callable_is_rejected(tmp_path):
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(print))
    with pytest.raises(SystemExit, match="forebay: error: not plain data"):
        run("stats", str(tmp_path / "evil.pickle"))


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["stats"]], ids=repr)
def test_invalid_arguments_print_usage(arguments, capsys):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "usage: python -m forebay.cuda._memory_viz" in capsys.readouterr().err


def test_format_flamegraph_runs_given_script(tmp_path):
    script = tmp_path / "draw.sh"
    script.write_text('#!/bin/sh\necho "$@"; cat\n')
    script.chmod(0o755)
    assert _memory_viz.format_flamegraph("a;b 5\n", str(script)) == "--countname bytes\na;b 5\n"
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(AssertionError, match="flamegraph process exited with code 3"):
        _memory_viz.format_flamegraph("a;b 5\n", str(script))


def test_profile_plot_is_unsupported():
    with pytest.raises(forebay.Unsupported, match=r"reads profiles of torch\.profiler"):
        _memory_viz.profile_plot(None)
