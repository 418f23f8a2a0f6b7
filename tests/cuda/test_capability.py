"""Dtypes that devices support, warnings for unsupported devices, and peak throughput from clock rates and widths."""

from __future__ import annotations

import warnings

import pytest

import forebay
import forebay.cuda
from forebay.cuda import capability
from forebay.cuda._device_limits import GPULimits


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


@pytest.fixture
def v100():
    with forebay.emulate("cuda", profile="v100"):
        yield


def test_bf16_and_tf32_unsupported_without_device(monkeypatch):
    with forebay.backends.override_driver(forebay.backends._UnavailableDriver("cuda", "none")):
        assert not capability.is_bf16_supported()
        assert not capability.is_tf32_supported()
        assert warnings_of(capability._check_capability) == []


def test_old_device_supports_bf16_only_by_emulation(v100):
    assert capability.is_bf16_supported()
    assert not capability.is_bf16_supported(including_emulation=False)
    assert not capability.is_tf32_supported()


def test_check_capability_warns_about_old_device(v100):
    (text,) = warnings_of(capability._check_capability)
    first, *_, last = text.splitlines()
    assert first.endswith("(emulated) which is of compute capability (CC) 7.0.")
    assert last == "PyTorch 2.15 supports this GPU in its builds for CUDA 12.6."


def test_check_cubins_warns_about_major_version_without_binary(v100, monkeypatch):
    assert warnings_of(capability._check_cubins) == []  # binaries for 7.5 have its major version
    monkeypatch.setattr(capability, "get_arch_list", lambda: ["sm_80", "sm_90a", "compute_70"])
    (text,) = warnings_of(capability._check_cubins)
    assert "with CUDA capability sm_70 is not compatible" in text
    assert "supports CUDA capabilities sm_80 sm_90a compute_70." in text


@pytest.mark.parametrize("check", ["_check_capability", "_check_cubins"])
def test_checks_do_nothing_without_architectures(v100, monkeypatch, check):
    monkeypatch.setattr(capability, "get_arch_list", list)
    assert warnings_of(getattr(capability, check)) == []


def test_emulated_device_causes_no_warning(v100):
    assert warnings_of(lambda: forebay.empty(3, device="cuda:0")) == []
    assert warnings_of(capability.warn_unsupported_devices) == []


def test_real_device_causes_warning_at_init(v100, as_if_real):
    assert len(warnings_of(forebay.cuda.init)) == 1


def test_unknown_capability_warns():
    with pytest.warns(UserWarning, match=r"unknown compute capability 13\.0"):
        assert capability._code_compatible_with_device(131, 130)


def test_warning_for_device_without_any_build(v100):
    (text,) = warnings_of(lambda: capability._warn_unsupported_code(0, 30, [75]))
    assert text.splitlines()[-1] == "No published build of PyTorch 2.15 supports this GPU."


def test_limits_of_h100():
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
def test_unknown_limit_raises(profile, dtype):
    with forebay.emulate("cuda", profile=profile):
        limits = GPULimits("cuda:0")
    with pytest.raises(RuntimeError, match="No data for sm_"):
        limits.get_fma_per_cycle_per_sm_tensor_cores(dtype)
