"""libnvidia-ml.so.1 by ctypes, as a compiled stand-in answers; and beside nvidia-ml-py over the same one."""

from __future__ import annotations

import ctypes
import shutil
import sys

import pytest
from support.vendor_libraries import UUIDS, compiled_nvml, pynvml_module

from forebay.observe.telemetry import nvml, nvml_ctypes
from forebay.observe.telemetry.nvml_ctypes import NVMLError, NvmlLibrary

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile the stand-in with")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    return compiled_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def library(stand_in, monkeypatch):
    """The stand-in's own handle; nvidia-ml-py is not installed."""
    monkeypatch.setattr(nvml_ctypes, "LIBRARY", stand_in)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    handle = ctypes.CDLL(stand_in)
    yield handle
    handle.refuse(b"", 0)
    handle.let_run(2)


def readings(sensors):
    names = ("name", "uuid", "memory", "busy", "temperature", "power", "clock", "processes")
    return {name: getattr(sensors, name)() for name in names}


def test_everything_is_read_of_the_right_device(library):
    gpus = nvml.Nvml()
    assert gpus.machine_count() == 2
    assert readings(gpus.sensors(1)) == {
        "name": "GPU 1",
        "uuid": UUIDS[1],
        "memory": ((5 << 30) + 1, 80 << 30),
        "busy": (41, 21),
        "temperature": 51,
        "power": 300_001,
        "clock": 1001,
        "processes": {100: (3 << 20) + 1, 101: None},
    }


def test_nvidia_ml_py_is_asked_where_it_is_installed_and_says_the_same(library, monkeypatch):
    by_ctypes = [readings(nvml.Nvml().sensors(index)) for index in range(2)]
    monkeypatch.setitem(sys.modules, "pynvml", pynvml_module())
    assert isinstance(nvml.binding(), type(sys))
    assert [readings(nvml.Nvml().sensors(index)) for index in range(2)] == by_ctypes


@pytest.mark.parametrize("count", [0, 1, 50])
def test_all_processes_are_listed_however_many(library, count):
    library.let_run(count)
    assert list(nvml.Nvml().sensors(0).processes()) == list(range(100, 100 + count))


@pytest.mark.parametrize(
    ("function", "read"),
    [
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetMemoryInfo", "memory"),
        ("nvmlDeviceGetUtilizationRates", "busy"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetPowerUsage", "power"),
        ("nvmlDeviceGetClockInfo", "clock"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
    ],
)
def test_a_refusal_has_the_librarys_code_and_words(library, function, read):
    sensors = nvml.Nvml().sensors(0)
    library.refuse(function.encode(), 3)
    with pytest.raises(NVMLError, match=r"^Refused$") as caught:
        getattr(sensors, read)()
    assert (caught.value.code, caught.value.value, caught.value.call) == (3, 3, function)


def test_a_code_without_words_is_told_by_its_number(library):
    library.refuse(b"nvmlDeviceGetCount_v2", 99)
    with pytest.raises(NVMLError, match=r"^error 99$"):
        nvml.Nvml().machine_count()


@pytest.mark.parametrize("index", [2, -1])
def test_a_device_that_is_not_there_is_refused(library, index):
    with pytest.raises(NVMLError, match="Refused") as caught:
        nvml.Nvml().sensors(index)
    assert caught.value.code == 2


def test_processes_that_cannot_be_listed_end_the_question(library):
    """It says that the room is too small, and names no larger one."""
    library.let_run(0)
    library.refuse(b"nvmlDeviceGetComputeRunningProcesses_v3", 7)
    with pytest.raises(NVMLError) as caught:
        nvml.Nvml().sensors(0).processes()
    assert caught.value.code == 7


def test_a_driver_that_is_not_loaded(library):
    library.refuse(b"nvmlInit_v2", 9)
    with pytest.raises(RuntimeError, match=r"^cuda driver can't be loaded, is cuda enabled\?$"):
        nvml.Nvml()


def test_a_start_can_be_taken_back(library):
    before = library.started()
    loaded = NvmlLibrary()
    loaded.nvmlInit()
    assert library.started() == before + 1
    loaded.nvmlShutdown()
    assert library.started() == before


def test_without_a_library_there_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml_ctypes, "LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not nvml.installed()
    with pytest.raises(ModuleNotFoundError) as caught:
        nvml.Nvml()
    assert str(caught.value) == "nvidia-ml-py does not seem to be installed or it can't be imported."


def test_something_else_that_is_named_pynvml_does_not_count(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    assert isinstance(nvml.binding(), NvmlLibrary)
    assert "not nvidia-ml-py" in str(nvml.import_error())
