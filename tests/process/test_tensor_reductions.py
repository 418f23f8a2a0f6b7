"""Registration of the tensors' reductions with `multiprocessing` when the first device is opened."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIMIT = 60  # seconds

BEGIN = """
import importlib.abc, os, signal, sys, threading
import forebay

class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "multiprocessing.reduction":
            started.set()
            go_on.wait(0.5)
        return None

started, go_on = threading.Event(), threading.Event()
sys.meta_path.insert(0, Hook())
registered = lambda: "forebay.interop.multiprocessing" in sys.modules
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_device_registers_the_reductions():
    program = """
print(registered(), end=" ")
forebay.empty(1)
print(registered())
"""
    assert output_of(program) == "False True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork_during_the_registration_waits_for_it():
    program = """
emulation = forebay.emulate("cuda")
emulation.__enter__()
thread = threading.Thread(target=lambda: forebay.empty(1))
thread.start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # a locked module would stop the child forever
    print(registered(), forebay.empty(1, device="cuda").nbytes, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    assert output_of(program) == "True 4\n"


def test_device_can_be_opened_if_the_registration_fails():
    program = """
class Failing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "multiprocessing.reduction":
            raise OSError(24, "Too many open files")

sys.meta_path.insert(0, Failing())
print(forebay.zeros(1).tolist(), registered(), end=" ")
del sys.meta_path[0]
with forebay.emulate("cuda"):
    forebay.empty(1, device="cuda")
print(registered())
"""
    assert output_of(program) == "[0.0] False True\n"
