"""PyTorch's profiler, ranges and marks while devices are emulated."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.profiler import ProfilerActivity, record_function  # noqa: E402 -- as above

from forebay._base.device_spec import Device  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.errors import ForebayWarning  # noqa: E402 -- as above
from forebay.runtime.devices.open_device import open_device  # noqa: E402 -- as above
from forebay.runtime.history import recording  # noqa: E402 -- as above
from forebay.runtime.memory.device_snapshot import take_snapshot  # noqa: E402 -- as above


@pytest.mark.parametrize("activities", [[ProfilerActivity.CUDA], [ProfilerActivity.CPU, ProfilerActivity.CUDA]])
def test_profiler_records_the_cpu_only(emulated, capfd, activities):
    x = torch.ones(3, device="cuda")
    profile = torch.profiler.profile(activities=activities)
    with pytest.warns(ForebayWarning, match="emulated devices run no kernels: PyTorch's profiler records the CPU only"):
        profile.start()
    x * 2
    profile.stop()
    assert "aten::mul" in {event.key for event in profile.key_averages()}
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_old_profiler_records_the_cpu_only(emulated):
    with pytest.warns(ForebayWarning, match="the CPU only"):
        profile = torch.autograd.profiler.profile(use_device="cuda")
    assert profile.use_device is None


def test_ranges_and_sessions_have_no_effect(emulated):
    with torch.cuda.nvtx.range("step {}", 1), torch.cuda.profiler.profile():
        torch.cuda.nvtx.mark("here")
    assert torch.cuda.nvtx.range_push("step") == -2  # as without a profiler
    assert torch.cuda.nvtx.range_pop() == -2
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("step"))
    assert not torch.cuda.tunable.is_enabled()


def mark(name):
    with record_function(name):
        torch.ones(3, device="cuda")


def in_another_thread(name):
    thread = threading.Thread(target=mark, args=(name,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def names_of(marks):
    return [(each["stage"], each["name"]) for each in marks]


def both(name):
    return [("START", name), ("END", name)]


@pytest.mark.parametrize("everywhere", [False, True])
def test_ranges_of_functions_are_in_the_history(emulated, everywhere):
    """PyTorch 2.15's CUDA build records those of the thread that started the recording, or of all threads."""
    mark("before")
    torch.cuda.memory._record_memory_history(global_record_annotations=everywhere)
    try:
        mark("here")
        in_another_thread("there")
        found = torch.cuda.memory._snapshot()["external_annotations"]
        assert names_of(found) == both("here") + (both("there") if everywhere else [])
        assert {each["device"] for each in found} == {0}
    finally:
        torch.cuda.memory._record_memory_history(None)
    mark("after")
    assert torch.cuda.memory._snapshot()["external_annotations"] == []


def test_command_has_the_ranges_that_the_program_does_not_record(emulated):
    opened = open_device(Device("cuda", 0))
    recording.start_whole(opened.allocator, 1000)
    try:
        in_another_thread("there")
        assert names_of(take_snapshot(opened).notes["external_annotations"]) == both("there")
        assert "external_annotations" not in take_snapshot(opened, for_program=True).notes
    finally:
        opened.allocator.program = None
        recording.start(opened.allocator, None)
