"""Sensors and device counts of `forebay.cuda` through AMD SMI."""

from __future__ import annotations

import sys

import pytest
from support.vendor_libraries import NO_AMDSMI, NO_UUIDS, SENSORS, raising

from forebay import cuda

AMDSMI_NAMES = ("device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate")
FIRST = (7 << 20, 30, 60, 70, 250_000, 1700)  # readings of the device that the library lists first

pytestmark = pytest.mark.usefixtures("bare")


def readings(index):
    more = (1 << 20, 1, 1, 1, 1000, 1)
    return [reading + index * each for reading, each in zip(FIRST, more, strict=True)]


def test_sensors_use_hips_device_order(rocm):
    assert [getattr(cuda, name)(0) for name in SENSORS] == readings(1)
    assert [getattr(cuda, name)(1) for name in SENSORS] == readings(0)
    names = [f"_get_amdsmi_{name}" for name in AMDSMI_NAMES]
    assert [getattr(cuda, name)(1) for name in names] == readings(0)


@pytest.mark.parametrize(
    ("environ", "handle"),
    [
        ({}, "second"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "first"),
        ({"HIP_VISIBLE_DEVICES": "GPU-b0"}, "second"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, "second"),
    ],
    ids=["all", "ordinal", "serial number", "limited by ROCR"],
)
def test_environment_selects_devices(rocm, monkeypatch, environ, handle):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cuda._get_amdsmi_handler() == handle


def test_invisible_device_raises_runtime_error(rocm, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    with pytest.raises(RuntimeError, match=r"^device 1 is not visible \(HIP_VISIBLE_DEVICES=\[0\]\)$"):
        cuda.utilization(1)
    rocm.amdsmi_get_gpu_asic_info = raising(rocm.AmdSmiException())
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-a0")
    with (
        pytest.warns(UserWarning, match="Cannot get uuid"),
        pytest.raises(RuntimeError, match=NO_UUIDS),
    ):
        cuda.utilization(0)


def test_unknown_hip_order_warns(rocm):
    rocm.amdsmi_get_gpu_enumeration_info = lambda _handle: {}
    with pytest.warns(UserWarning, match="Cannot translate HIP ID") as caught:
        assert cuda._get_amdsmi_device_index(1) == 1
    wrong = " Functions that rely on amdsmi (e.g. temperature()) may operate on wrong devices."
    assert [str(warning.message) for warning in caught] == [
        "Cannot translate HIP ID to AMD SMI ID due to lack of translation information prior to ROCm 6.4." + wrong,
        "Cannot translate HIP ID 1 to AMD SMI ID due to undetected HIP ID from amdsmi. "
        "amdsmi_get_gpu_enumeration_info() only report these HIP IDs []." + wrong,
    ]


@pytest.mark.parametrize(
    ("info", "milliwatts"),
    [(("140", "N/A"), 140_000), (("N/A", "N/A"), 0)],
    ids=["average", "unknown"],
)
def test_power_is_in_milliwatts(rocm, info, milliwatts):
    rocm.amdsmi_get_power_info = lambda _handle: dict(
        zip(("average_socket_power", "current_socket_power"), info, strict=True)
    )
    assert cuda.power_draw() == milliwatts


@pytest.mark.parametrize(("info", "clock"), [({"cur_clk": 900, "clk": 1}, 900), ({"clk": "N/A"}, 0)])
def test_clock_rate_is_read_under_both_names(rocm, info, clock):
    rocm.amdsmi_get_clock_info = lambda _handle, _kind: info
    assert cuda.clock_rate() == clock


def test_processes_are_listed(rocm):
    line = "process        200 uses        9.000 MB GPU memory"
    assert cuda.list_gpu_processes(0) == f"GPU:1\n{line}"
    old = {"pid": 200, "memory_usage": {"vram_mem": 9 << 20}}
    rocm.amdsmi_get_gpu_process_list = lambda _handle: ["old"]
    rocm.amdsmi_get_gpu_process_info = lambda _handle, process: old if process == "old" else None
    assert cuda.list_gpu_processes(0) == f"GPU:1\n{line}"
    rocm.amdsmi_get_gpu_process_list = raising(rocm.AmdSmiException())
    assert cuda.list_gpu_processes() == "amdsmi cannot list processes from other users"


def test_driver_that_is_not_loaded_raises_runtime_error(rocm):
    rocm.amdsmi_init = raising(rocm.AmdSmiException())
    for name in SENSORS:
        with pytest.raises(RuntimeError, match=r"^amdsmi driver can't be loaded, requires >=ROCm6\.0 installation$"):
            getattr(cuda, name)()
    assert cuda.list_gpu_processes() == "amdsmi driver can't be loaded, is ROCm installed?"


def test_devices_are_counted(rocm, monkeypatch):
    assert (cuda._raw_device_count_amdsmi(), cuda._raw_device_uuid_amdsmi()) == (2, ["a0a1", "b0b1"])
    for visible, count in (("0,1", 2), ("1,5", 1), ("", 0), ("GPU-b0", 1), ("MIG-x", 0)):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
        assert cuda._device_count_amdsmi() == count


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("amdsmi_init", "Can't initialize amdsmi"),
        ("amdsmi_get_processor_handles", "Can't get amdsmi device count"),
        ("amdsmi_get_gpu_asic_info", "Cannot get uuid for amd device"),
    ],
)
def test_failing_function_warns(rocm, monkeypatch, function, text):
    setattr(rocm, function, raising(rocm.AmdSmiException()))
    with pytest.warns(UserWarning, match=f"^{text}$"):
        assert cuda._raw_device_uuid_amdsmi() is None
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-a")
    with pytest.warns(UserWarning, match=f"^{text}$"):
        assert cuda._device_count_amdsmi() == -1


def test_failing_count_warns_with_the_error_code(rocm):
    rocm.amdsmi_init = raising(rocm.AmdSmiException())
    with pytest.warns(UserWarning, match="^Can't initialize amdsmi - Error code: 34$"):
        assert cuda._raw_device_count_amdsmi() == -1


@pytest.mark.parametrize(
    "error", [KeyError("libamd_smi.so"), OSError("no library"), AttributeError("undefined symbol: f")]
)
def test_module_without_its_library_counts_as_missing(monkeypatch, error):
    class Broken:
        def find_spec(self, name, *_):
            if name == "amdsmi":
                raise error

    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as caught:
        cuda._get_amdsmi_handler()
    assert str(caught.value) == NO_AMDSMI
