"""The stand-in in child processes: forks, exits with queued work, and the environment."""

from __future__ import annotations

from support.software_metal import lines_of, run

BEGIN = """
import Metal, objc
from softmetal.control import control
device = Metal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
"""
FORK = """
import os
buffer = device.newBufferWithLength_options_(64, 0)
if (child := os.fork()) == 0:
    del buffer, queue
    try:
        device.name()
    except Exception as error:
        print(error.key, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(device.name())
"""
UNUSED = """
import os, Metal
if (child := os.fork()) == 0:
    print(Metal.MTLCreateSystemDefaultDevice().name(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
EXIT = """
control.hold()
with objc.autorelease_pool():
    commands = queue.commandBuffer()
    commands.addCompletedHandler_(lambda _: print("completed"))
    commands.commit()
print("end")
"""


def test_child_that_forks_after_use_fails():
    assert lines_of(BEGIN + FORK) == ["fork", "Apple M1"]


def test_child_that_forks_before_use_works():
    assert lines_of(UNUSED) == ["Apple M1"]


def test_exit_with_queued_work():
    assert lines_of(BEGIN + EXIT) == ["end"]


def test_machine_of_the_environment():
    assert lines_of(f"{BEGIN}print(device.name())", "m2-ultra-192gib") == ["Apple M2 Ultra"]


def test_program_that_breaks_a_rule_fails():
    done = run(f"{BEGIN}device.newBufferWithLength_options_(0, 0)")
    assert done.returncode == 1
    assert "MetalRuleViolation: a buffer of 0 bytes. Rule:" in done.stderr
