"""Forked child processes under `forebay run`: their own reports, and the summary of all."""

from __future__ import annotations

import json
import re

import pytest

from forebay.snapshot.formats import native

CHILDREN = """
    import multiprocessing, os
    import numpy as np
    kept = np.ones(1 << 17)
    def work(size):
        array = np.ones(size << 17)
        return [np.ones(1000).sum() for _ in range(100)] and float(array.sum())
    context = multiprocessing.get_context("fork")
"""
WAYS = {
    "pool": "with context.Pool(1) as pool: print(pool.map(work, [8, 16]))",
    "process": "p = context.Process(target=work, args=(16,)); p.start(); p.join(); print(p.exitcode)",
    "os._exit": "if not os.fork(): work(16); os._exit(3)\n    print(os.wait()[1])",
    "sys.exit": "if not os.fork(): work(16); raise SystemExit(3)\n    print(os.wait()[1])",
    "error": "p = context.Process(target=work, args=('x',)); work(16); p.start(); p.join(); print(p.exitcode)",
    "executor": "from concurrent.futures import ProcessPoolExecutor\n"
    "    with ProcessPoolExecutor(1, context) as pool: print(*pool.map(work, [8, 16]))",
}


def directories(observed) -> list:
    return sorted(observed.output.glob("process-*"))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "error"])
def test_child_has_a_report_however_it_ends(runner, way):
    observed = runner.same(f"{CHILDREN}\n    {WAYS[way]}\n")
    (folder,) = directories(observed)
    summary = json.loads((folder / "summary.json").read_text())
    assert f"process-{summary['pid']}" == folder.name
    assert 17 << 20 <= summary["devices"][0]["peak"] < 26 << 20
    assert summary["other_arrays"]["allocations"] >= 100
    snapshot = native.read(folder / "snapshot.forebay")
    assert "work" in snapshot.strings
    assert "1 child process" in observed.err
    assert re.search(rf"{summary['pid']} +\d", observed.err)
    assert f"in process {summary['pid']}" in (observed.output / "report.html").read_text()
    assert json.loads((observed.output / "summary.json").read_text())["children"] == [summary]


def test_child_that_fails_ends_as_under_python(runner):
    observed = runner.python(f"{CHILDREN}\n    {WAYS['error']}\n")
    assert runner.forebay(f"{CHILDREN}\n    {WAYS['error']}\n").out == observed.out


NESTED = """
    import os
    import numpy as np
    if not os.fork():
        if not os.fork():
            np.ones(1 << 20)
            os._exit(0)
        os.wait()
        np.ones(1 << 19)
        os._exit(0)
    os.wait()
    if not os.fork():
        os._exit(0)  # allocates nothing
    os.wait()
    if not os.fork():
        os.execv("/bin/true", ["true"])
    os.wait()
"""


def test_grandchildren_report_and_idle_children_do_not(runner):
    observed = runner.same(NESTED)
    assert len(directories(observed)) == 2
    assert "2 child processes" in observed.err


def test_children_are_left_out_on_request(runner):
    observed = runner.forebay(NESTED, options=("--no-children",))
    assert directories(observed) == []
    assert "child process" not in observed.err


def test_child_does_not_repeat_buffered_output(runner):
    observed = runner.same(
        """
        import os, sys
        import numpy as np
        sys.stdout.write("once")
        if not os.fork():
            np.ones(1 << 20)
            os._exit(0)
        os.wait()
        """
    )
    assert observed.out == "once"
