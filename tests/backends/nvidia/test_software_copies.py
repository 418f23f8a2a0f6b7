"""Copies of tensors on the software driver: to the host, and between devices."""

from __future__ import annotations

import sys

import pytest
from support.software_driver import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, threading
import forebay
from forebay import cuda

soft = ctypes.CDLL("libcuda.so.1")
LIMIT = 30
"""


def output_of(program: str) -> list[str]:
    done = run(BEGIN + program)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_converting_copy_to_the_host_does_not_wait_and_is_pinned():
    program = """
there, stream, gate = forebay.arange(4, device="cuda"), cuda.current_stream(), threading.Event()
stream.queue.call(lambda: gate.wait(LIMIT))
copies = [there.to("cpu", dtype, non_blocking=True) for dtype in (None, forebay.float64, forebay.bfloat16)]
copies.append(there.view(2, 2).transpose(0, 1).to("cpu", forebay.int8, non_blocking=True))
print(stream.query(), [each.is_pinned() for each in copies])
gate.set()
stream.synchronize()
print([each.tolist() for each in copies])
print(there.to("cpu", forebay.float64).is_pinned())
"""
    assert output_of(program) == [
        "False [True, True, True, True]",
        "[[0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [[0, 2], [1, 3]]]",
        "False",
    ]
