"""Forked children with their own emulated devices and those of their parents."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import run_silently

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def test_forked_child_can_read_sensors(runner):
    run_silently(
        runner,
        """
with forebay.emulate("cuda", count=2):
    tensor = forebay.zeros(1000, device="cuda:1")
    assert cuda.device_memory_used(1) == 2 << 20

    def check():
        assert (cuda.utilization(1), cuda.device_memory_used(1)) == (0, 0)
        assert cuda.list_gpu_processes(1) == "GPU:1\\nno processes are running"
        assert cuda.temperature() and cuda.power_draw()

    assert forked(check) == 0
    assert str(os.getpid()) in cuda.list_gpu_processes(1)
""",
    )


def test_forked_child_can_emulate_despite_locks_held_in_parent(runner):
    run_silently(
        runner,
        """
from forebay.backends.emulated.memory_budget import budget, guard_reporter

held, release = threading.Event(), threading.Event()
def hold_locks():
    with budget._lock, guard_reporter._lock:
        held.set()
        release.wait(20)
holder = threading.Thread(target=hold_locks)
holder.start()
assert held.wait(20)

def emulate():
    with forebay.emulate("cuda", guard=True):
        assert forebay.full((2,), 7, device="cuda:0").tolist() == [7, 7]

assert forked(emulate) == 0
release.set()
holder.join()
""",
    )


def test_destroy_callback_of_a_graph_does_not_run_in_forked_child(runner):
    run_silently(
        runner,
        """
import gc

with forebay.emulate("cuda"):
    tensor, graph, calls = forebay.zeros(3, device="cuda"), cuda.CUDAGraph(), []
    with cuda.graph(graph):
        tensor.fill_(1)
    graph.register_destroy_callback(lambda: calls.append(os.getpid()), synchronize_before_release=True)
    graph.replay()
    cuda.synchronize()

    def delete_graph():
        global graph
        del graph
        gc.collect()
        assert calls == []

    assert forked(delete_graph) == 0
    del graph
    assert calls == [os.getpid()]
""",
    )


def test_forked_child_can_enable_the_sanitizer(runner):
    run_silently(
        runner,
        """
from forebay.cuda import _sanitizer
from forebay.runtime.base import observers

_sanitizer.enable_cuda_sanitizer()

def enable():
    assert not _sanitizer.cuda_sanitizer.enabled
    _sanitizer.enable_cuda_sanitizer()
    assert (_sanitizer.cuda_sanitizer.enabled, len(observers.registered)) == (True, 1)

assert forked(enable) == 0
assert _sanitizer.cuda_sanitizer.enabled
""",
    )
