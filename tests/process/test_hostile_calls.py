"""Calls of compiled code with hostile arguments: an error is right, the death of the process is a fault."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

TESTS = Path(__file__).parents[1]
PACKAGE = Path(forebay.__file__).parent
COMPILED = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.pyx"))
LIMIT = 100  # seconds for a child, which takes about one
CALLS = 300  # at random, after every name was called with every value


def run_child(path, seed, calls, log):
    arguments = ["-m", "support.hostile_calls", path, str(seed), str(calls), str(log)]
    return subprocess.run(
        [sys.executable, *arguments], cwd=TESTS, capture_output=True, encoding="utf-8", timeout=LIMIT, check=False
    )


@pytest.mark.parametrize("path", COMPILED)
def test_hostile_arguments_end_no_process(path, tmp_path):
    log = tmp_path / "call"
    done = run_child(path, 0, CALLS, log)
    call = log.read_bytes().rstrip(b"\0").decode()
    assert done.returncode == 0, f"the process ended with {done.returncode} in {call}\n{done.stderr[:3000]}"
    assert int(done.stdout) > 500


def test_child_that_dies_names_the_call(tmp_path):
    (tmp_path / "dies.py").write_text(
        "import os, sys\n"
        "from support.hostile_calls import __main__ as calls\n"
        "module = calls.load('runtime/devices/_thread_state')\n"
        "module.ThreadState = type('ThreadState', (), {'fall': lambda *_: os.abort(), '__module__': module.__name__})\n"
        "calls.main('runtime/devices/_thread_state', '0', '10', sys.argv[1])\n"
    )
    log = tmp_path / "call"
    done = subprocess.run(
        [sys.executable, tmp_path / "dies.py", log], cwd=TESTS, capture_output=True, timeout=LIMIT, check=False,
        env={"PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert done.returncode < 0
    assert b"ThreadState" in log.read_bytes()


@pytest.mark.parametrize("path", COMPILED)
def test_extension_types_have_no_generated_pickling(path):
    module = importlib.import_module("forebay." + path.replace("/", "."))
    kinds = [
        value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    assert not [kind for kind in kinds if hasattr(kind, "__reduce_cython__") or hasattr(kind, "__setstate_cython__")]


def test_extension_object_is_neither_copied_nor_pickled():
    from forebay._core import Pool
    from forebay.observe.tracing._entries import MemoryCounters
    from forebay.runtime.pinned._cache import HostBlock

    for made in (Pool(), MemoryCounters(len), HostBlock(512, 512)):
        for refused in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot pickle"):
                refused(made)
