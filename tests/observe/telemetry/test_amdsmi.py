"""forebay.cuda's sensors and counts by AMD's library."""

from __future__ import annotations

import sys

import pytest
from support.vendor_libraries import NO_AMDSMI, NO_UUIDS, SENSORS, refuse

from forebay import cuda

OF_AMD = ("device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate")
FIRST = (7 << 20, 30, 60, 70, 250_000, 1700)  # of the device that the library lists first

pytestmark = pytest.mark.usefixtures("bare")


def readings(index):
    more = (1 << 20, 1, 1, 1, 1000, 1)
    return [reading + index * each for reading, each in zip(FIRST, more, strict=True)]


def test_every_sensor_of_the_device_that_hip_means(rocm):
    assert [getattr(cuda, name)(0) for name in SENSORS] == readings(1)
    assert [getattr(cuda, name)(1) for name in SENSORS] == readings(0)
    names = [f"_get_amdsmi_{name}" for name in OF_AMD]
    assert [getattr(cuda, name)(1) for name in names] == readings(0)


@pytest.mark.parametrize(
    ("environ", "handle"),
    [
        ({}, "second"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "first"),
        ({"HIP_VISIBLE_DEVICES": "GPU-b0"}, "second"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, "second"),
    ],
    ids=["all", "an ordinal", "a serial number", "as many as ROCR leaves"],
)
def test_the_environment_chooses(rocm, monkeypatch, environ, handle):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cuda._get_amdsmi_handler() == handle


def test_one_that_is_not_visible(rocm, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    with pytest.raises(RuntimeError, match=r"^device 1 is not visible \(HIP_VISIBLE_DEVICES=\[0\]\)$"):
        cuda.utilization(1)
    rocm.amdsmi_get_gpu_asic_info = refuse(rocm.AmdSmiException())
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-a0")
    with (
        pytest.warns(UserWarning, match="Cannot get uuid"),
        pytest.raises(RuntimeError, match=NO_UUIDS),
    ):
        cuda.utilization(0)


def test_what_hip_counts_may_not_be_known(rocm):
    rocm.amdsmi_get_gpu_enumeration_info = lambda _handle: {}
    with pytest.warns(UserWarning, match="Cannot translate HIP ID") as told:
        assert cuda._get_amdsmi_device_index(1) == 1
    wrong = " Functions that rely on amdsmi (e.g. temperature()) may operate on wrong devices."
    assert [str(warning.message) for warning in told] == [
        "Cannot translate HIP ID to AMD SMI ID due to lack of translation information prior to ROCm 6.4." + wrong,
        "Cannot translate HIP ID 1 to AMD SMI ID due to undetected HIP ID from amdsmi. "
        "amdsmi_get_gpu_enumeration_info() only report these HIP IDs []." + wrong,
    ]


@pytest.mark.parametrize(
    ("info", "milliwatts"),
    [(("140", "N/A"), 140_000), (("N/A", "N/A"), 0)],
    ids=["the average first", "unknown"],
)
def test_power_is_in_milliwatts(rocm, info, milliwatts):
    rocm.amdsmi_get_power_info = lambda _handle: dict(
        zip(("average_socket_power", "current_socket_power"), info, strict=True)
    )
    assert cuda.power_draw() == milliwatts


@pytest.mark.parametrize(("info", "clock"), [({"cur_clk": 900, "clk": 1}, 900), ({"clk": "N/A"}, 0)])
def test_the_clock_has_two_names(rocm, info, clock):
    rocm.amdsmi_get_clock_info = lambda _handle, _kind: info
    assert cuda.clock_rate() == clock


def test_the_processes(rocm):
    line = "process        200 uses        9.000 MB GPU memory"
    assert cuda.list_gpu_processes(0) == f"GPU:1\n{line}"
    old = {"pid": 200, "memory_usage": {"vram_mem": 9 << 20}}
    rocm.amdsmi_get_gpu_process_list = lambda _handle: ["old"]
    rocm.amdsmi_get_gpu_process_info = lambda _handle, process: old if process == "old" else None
    assert cuda.list_gpu_processes(0) == f"GPU:1\n{line}"
    rocm.amdsmi_get_gpu_process_list = refuse(rocm.AmdSmiException())
    assert cuda.list_gpu_processes() == "amdsmi cannot list processes from other users"


def test_a_driver_that_is_not_loaded(rocm):
    rocm.amdsmi_init = refuse(rocm.AmdSmiException())
    for name in SENSORS:
        with pytest.raises(RuntimeError, match=r"^amdsmi driver can't be loaded, requires >=ROCm6\.0 installation$"):
            getattr(cuda, name)()
    assert cuda.list_gpu_processes() == "amdsmi driver can't be loaded, is ROCm installed?"


def test_they_are_counted(rocm, monkeypatch):
    assert (cuda._raw_device_count_amdsmi(), cuda._raw_device_uuid_amdsmi()) == (2, ["a0a1", "b0b1"])
    for text, count in (("0,1", 2), ("1,5", 1), ("", 0), ("GPU-b0", 1), ("MIG-x", 0)):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", text)
        assert cuda._device_count_amdsmi() == count


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("amdsmi_init", "Can't initialize amdsmi"),
        ("amdsmi_get_processor_handles", "Can't get amdsmi device count"),
        ("amdsmi_get_gpu_asic_info", "Cannot get uuid for amd device"),
    ],
)
def test_what_is_refused_is_warned_of(rocm, monkeypatch, function, told):
    setattr(rocm, function, refuse(rocm.AmdSmiException()))
    with pytest.warns(UserWarning, match=f"^{told}$"):
        assert cuda._raw_device_uuid_amdsmi() is None
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-a")
    with pytest.warns(UserWarning, match=f"^{told}$"):
        assert cuda._device_count_amdsmi() == -1


def test_a_count_that_is_refused(rocm):
    rocm.amdsmi_init = refuse(rocm.AmdSmiException())
    with pytest.warns(UserWarning, match="^Can't initialize amdsmi - Error code: 34$"):
        assert cuda._raw_device_count_amdsmi() == -1


@pytest.mark.parametrize(
    "error", [KeyError("libamd_smi.so"), OSError("no library"), AttributeError("undefined symbol: f")]
)
def test_a_module_whose_library_is_missing_is_not_there(monkeypatch, error):
    class Broken:
        def find_spec(self, name, *_):
            if name == "amdsmi":
                raise error

    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as caught:
        cuda._get_amdsmi_handler()
    assert str(caught.value) == NO_AMDSMI
