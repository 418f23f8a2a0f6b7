"""What devices compute in, who is no longer served, and the limits that follow from clocks and widths."""

from __future__ import annotations

import warnings

import pytest

import forebay
import forebay.cuda
from forebay.cuda import capability
from forebay.cuda._device_limits import GPULimits


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.fixture
def v100():
    with forebay.emulate("cuda", profile="v100"):
        yield


def test_no_device_computes_in_nothing(monkeypatch):
    with forebay.backends.registered(forebay.backends._Absent("cuda", "none")):
        assert not capability.is_bf16_supported()
        assert not capability.is_tf32_supported()
        assert warned(capability._check_capability) == []


def test_an_old_device_holds_bfloat16_and_does_not_compute_in_it(v100):
    assert capability.is_bf16_supported()
    assert not capability.is_bf16_supported(including_emulation=False)
    assert not capability.is_tf32_supported()


def test_an_old_device_is_told_of_when_asked(v100):
    (text,) = warned(capability._check_capability)
    first, *_, last = text.splitlines()
    assert first.endswith("(emulated) which is of compute capability (CC) 7.0.")
    assert last == "PyTorch 2.15 serves this GPU in its builds for CUDA 12.6."


def test_a_device_of_a_major_version_that_no_binary_is_of(v100, monkeypatch):
    assert warned(capability._check_cubins) == []  # those for 7.5 are of its major version
    monkeypatch.setattr(capability, "get_arch_list", lambda: ["sm_80", "sm_90a", "compute_70"])
    (text,) = warned(capability._check_cubins)
    assert "with CUDA capability sm_70 is not compatible" in text
    assert "supports CUDA capabilities sm_80 sm_90a compute_70." in text


@pytest.mark.parametrize("check", ["_check_capability", "_check_cubins"])
def test_without_architectures_there_is_nothing_to_check(v100, monkeypatch, check):
    monkeypatch.setattr(capability, "get_arch_list", list)
    assert warned(getattr(capability, check)) == []


def test_an_emulated_device_is_used_without_a_warning(v100):
    assert warned(lambda: forebay.empty(3, device="cuda:0")) == []
    assert warned(capability.check_real_devices) == []


def test_a_real_one_would_be_told_of(v100, as_if_real):
    assert len(warned(forebay.cuda.init)) == 1


def test_a_capability_that_nobody_knows():
    with pytest.warns(UserWarning, match=r"unknown compute capability 13\.0"):
        assert capability._code_compatible_with_device(131, 130)


def test_a_device_that_no_build_serves(v100):
    (text,) = warned(lambda: capability._warn_unsupported_code(0, 30, [75]))
    assert text.splitlines()[-1] == "No published build of PyTorch 2.15 supports this GPU."


def test_the_limits_of_an_h100():
    with forebay.emulate("cuda", profile="h100"):
        limits = GPULimits("cuda:0")
        properties = limits.device_properties
    per_cycle = properties["multi_processor_count"] * properties["clock_rate"] * 1000
    assert limits.get_tflops_per_second("bfloat16") == pytest.approx(per_cycle * 2048 * 2 / 1e12)
    assert limits.get_tflops_per_second("float32", use_tensor_cores=False) == pytest.approx(per_cycle * 128 * 2 / 1e12)
    assert (
        limits.get_memory_bandwidth_Bps()
        == properties["memory_bus_width"] // 4 * properties["memory_clock_rate"] * 1000
    )
    assert limits.get_shared_memory_bandwidth_Bps() == per_cycle * 128


@pytest.mark.parametrize(("profile", "dtype"), [("v100", "float16"), ("h100", "int32"), ("h100", "bool")])
def test_limits_that_nobody_knows(profile, dtype):
    with forebay.emulate("cuda", profile=profile):
        limits = GPULimits("cuda:0")
    with pytest.raises(RuntimeError, match="No data for sm_"):
        limits.get_fma_per_cycle_per_sm_tensor_cores(dtype)
