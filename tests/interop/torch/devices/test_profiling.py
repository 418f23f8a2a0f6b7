"""PyTorch's profiler, ranges and marks while devices are emulated."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.profiler import ProfilerActivity  # noqa: E402 -- as above

from forebay.errors import ForebayWarning  # noqa: E402 -- after PyTorch, without which the file is skipped


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
