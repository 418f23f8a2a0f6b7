"""What a forked child may do with emulated devices, its own and its parent's."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import succeeds

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")


def test_sensors_can_be_read_in_a_child(runner):
    succeeds(
        runner,
        """
with forebay.emulate("cuda", count=2):
    tensor = forebay.zeros(1000, device="cuda:1")
    assert cuda.device_memory_used(1) == 2 << 20

    def look():
        assert (cuda.utilization(1), cuda.device_memory_used(1)) == (0, 0)
        assert cuda.list_gpu_processes(1) == "GPU:1\\nno processes are running"
        assert cuda.temperature() and cuda.power_draw()

    assert forked(look) == 0
    assert str(os.getpid()) in cuda.list_gpu_processes(1)
""",
    )


def test_a_child_emulates_although_its_parent_was_counting_memory(runner):
    succeeds(
        runner,
        """
from forebay.backends.emulated.memory_budget import room, watch

held, forks = threading.Event(), threading.Event()
def count():
    with room._lock, watch._lock:
        held.set()
        forks.wait(20)
counting = threading.Thread(target=count)
counting.start()
assert held.wait(20)

def emulate():
    with forebay.emulate("cuda", guard=True):
        assert forebay.full((2,), 7, device="cuda:0").tolist() == [7, 7]

assert forked(emulate) == 0
forks.set()
counting.join()
""",
    )


def test_the_end_of_the_parents_graph_is_the_parents(runner):
    succeeds(
        runner,
        """
import gc

with forebay.emulate("cuda"):
    tensor, graph, ends = forebay.zeros(3, device="cuda"), cuda.CUDAGraph(), []
    with cuda.graph(graph):
        tensor.fill_(1)
    graph.register_destroy_callback(lambda: ends.append(os.getpid()), synchronize_before_release=True)
    graph.replay()
    cuda.synchronize()

    def end():
        global graph
        del graph
        gc.collect()
        assert ends == []

    assert forked(end) == 0
    del graph
    assert ends == [os.getpid()]
""",
    )


def test_a_child_looks_for_races_of_its_own(runner):
    succeeds(
        runner,
        """
from forebay.cuda import _sanitizer
from forebay.runtime.base import observers as listening

_sanitizer.enable_cuda_sanitizer()

def enable():
    assert not _sanitizer.cuda_sanitizer.enabled
    _sanitizer.enable_cuda_sanitizer()
    assert (_sanitizer.cuda_sanitizer.enabled, len(listening.listeners)) == (True, 1)

assert forked(enable) == 0
assert _sanitizer.cuda_sanitizer.enabled
""",
    )
