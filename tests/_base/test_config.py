"""Environment variables: parsing, defaults and error messages."""

from __future__ import annotations

import pytest

from forebay._base import config
from forebay._base.system_memory import usable_memory


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for variable in config.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


def test_variables_are_read_at_each_use(monkeypatch):
    assert config.CPU_DEVICES.value() == 1
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", " 4 ")
    assert config.CPU_DEVICES.value() == 4
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", "")
    assert config.CPU_DEVICES.value() == 1
    monkeypatch.setenv("FOREBAY_CPU_MEMORY", "1.5 GiB")
    assert config.CPU_MEMORY.value() == 3 << 29


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "1.0", "²"])
def test_invalid_value_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", text)
    with pytest.raises(ValueError, match=r"FOREBAY_CPU_DEVICES: .* from 1 to 64"):
        config.CPU_DEVICES.value()
    monkeypatch.setenv("FOREBAY_CPU_MEMORY", "much")
    with pytest.raises(ValueError, match="FOREBAY_CPU_MEMORY: 'much' is not a size"):
        config.CPU_MEMORY.value()


def test_cpu_devices_share_three_quarters_of_the_memory(monkeypatch):
    one = config.CPU_MEMORY.value()
    assert one == usable_memory() * 3 // 4
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", "3")
    assert config.CPU_MEMORY.value() == one // 3


def test_every_variable_has_a_description():
    assert [variable.name for variable in config.VARIABLES] == [
        "FOREBAY_CPU_DEVICES",
        "FOREBAY_CPU_MEMORY",
        "FOREBAY_EMULATE",
        "TORCH_CUDA_SANITIZER",
        "TORCH_CUDA_CHECK_STRAY_CONTEXT",
        "FOREBAY_DRIVER_TIMEOUT",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        "PYTORCH_MPS_LOW_WATERMARK_RATIO",
        "PYTORCH_DEBUG_MPS_ALLOCATOR",
        "PYTORCH_MPS_LOG_PROFILE_INFO",
        "PYTORCH_MPS_TRACE_SIGNPOSTS",
        "PYTORCH_MPS_FAST_MATH",
        "FOREBAY_TRACE",
    ]
    assert all(variable.meaning for variable in config.VARIABLES)
