"""ctypes binding of NVML, with a compiled fake library and compared with a fake nvidia-ml-py."""

from __future__ import annotations

import ctypes
import shutil
import sys

import pytest
from support.vendor_libraries import UUIDS, compiled_nvml, pynvml_module

from forebay.backends.nvidia import nvml_ctypes
from forebay.backends.nvidia.nvml_ctypes import NVMLError, NvmlLibrary
from forebay.observe.telemetry import nvml

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is required to compile the fake library")


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory):
    return compiled_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def library(fake_library, monkeypatch):
    """The fake library's control functions; nvidia-ml-py is not installed."""
    monkeypatch.setattr(nvml_ctypes, "LIBRARY", fake_library)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    handle = ctypes.CDLL(fake_library)
    yield handle
    handle.fail(b"", 0)
    handle.set_process_count(2)


def readings(sensors):
    names = ("name", "uuid", "memory", "busy", "temperature", "power", "clock", "processes")
    return {name: getattr(sensors, name)() for name in names}


def test_every_sensor_reads_the_given_device(library):
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


def test_installed_nvidia_ml_py_is_preferred_and_agrees(library, monkeypatch):
    by_ctypes = [readings(nvml.Nvml().sensors(index)) for index in range(2)]
    monkeypatch.setitem(sys.modules, "pynvml", pynvml_module())
    assert isinstance(nvml.binding(), type(sys))
    assert [readings(nvml.Nvml().sensors(index)) for index in range(2)] == by_ctypes


@pytest.mark.parametrize("count", [0, 1, 50])
def test_all_processes_are_listed(library, count):
    library.set_process_count(count)
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
def test_error_has_the_librarys_code_and_text(library, function, read):
    sensors = nvml.Nvml().sensors(0)
    library.fail(function.encode(), 3)
    with pytest.raises(NVMLError, match=r"^Failed$") as caught:
        getattr(sensors, read)()
    assert (caught.value.code, caught.value.value, caught.value.call) == (3, 3, function)


def test_error_without_text_shows_its_code(library):
    library.fail(b"nvmlDeviceGetCount_v2", 99)
    with pytest.raises(NVMLError, match=r"^error 99$"):
        nvml.Nvml().machine_count()


@pytest.mark.parametrize("index", [2, -1])
def test_invalid_index_is_rejected(library, index):
    with pytest.raises(NVMLError, match="Failed") as caught:
        nvml.Nvml().sensors(index)
    assert caught.value.code == 2


def test_process_list_does_not_retry_without_a_larger_size(library):
    """The library reports that the buffer is too small, but not a larger size."""
    library.set_process_count(0)
    library.fail(b"nvmlDeviceGetComputeRunningProcesses_v3", 7)
    with pytest.raises(NVMLError) as caught:
        nvml.Nvml().sensors(0).processes()
    assert caught.value.code == 7


def test_driver_that_is_not_loaded_raises_runtime_error(library):
    library.fail(b"nvmlInit_v2", 9)
    with pytest.raises(RuntimeError, match=r"^cuda driver can't be loaded, is cuda enabled\?$"):
        nvml.Nvml()


def test_shutdown_undoes_an_initialization(library):
    before = library.init_count()
    loaded = NvmlLibrary()
    loaded.nvmlInit()
    assert library.init_count() == before + 1
    loaded.nvmlShutdown()
    assert library.init_count() == before


def test_missing_library_raises_module_not_found_error(monkeypatch, tmp_path):
    monkeypatch.setattr(nvml_ctypes, "LIBRARY", str(tmp_path / "none.so"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not nvml.installed()
    with pytest.raises(ModuleNotFoundError) as caught:
        nvml.Nvml()
    assert str(caught.value) == "nvidia-ml-py does not seem to be installed or it can't be imported."


def test_unrelated_module_named_pynvml_is_ignored(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    assert isinstance(nvml.binding(), NvmlLibrary)
    assert "not nvidia-ml-py" in str(nvml.import_error())
