"""The module of nvidia-ml-py: missing, another package of that name, and the search for a device by its UUID."""

from __future__ import annotations

import sys

import pytest
from support.vendor_libraries import pynvml_module, raising

from forebay.backends.nvidia import nvml
from forebay.backends.nvidia.process_usage import process_memory
from forebay.errors import DeviceError
from forebay.observe.telemetry import nvml as telemetry

MISSING = "nvidia-ml-py does not seem to be installed or it can't be imported."


@pytest.mark.usefixtures("bare")
def test_missing_package_raises_module_not_found_error():
    with pytest.raises(ModuleNotFoundError):
        nvml.imported()
    with pytest.raises(ModuleNotFoundError) as caught:
        telemetry.Nvml()
    assert str(caught.value) == MISSING
    assert telemetry.import_error() is None


def test_unrelated_module_named_pynvml_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    with pytest.raises(ImportError, match="is not nvidia-ml-py"):
        nvml.imported()
    with pytest.raises(ModuleNotFoundError, match=MISSING):
        telemetry.binding()
    assert "not nvidia-ml-py" in str(telemetry.import_error())


@pytest.mark.usefixtures("bare")
def test_reason_for_missing_sensors_needs_a_machine_with_the_library(monkeypatch):
    assert not telemetry.installed()
    assert telemetry.why_not() == ""
    monkeypatch.setattr(telemetry, "has_library", lambda: True)
    assert telemetry.why_not() == (
        "nvidia-ml-py is not installed, which reads NVML: pip install 'forebay[cuda]'; until then GPUs are counted "
        "through CUDA alone"
    )
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    assert telemetry.why_not().startswith("the installed module pynvml is not nvidia-ml-py; ")
    monkeypatch.setitem(sys.modules, "pynvml", pynvml_module())
    assert telemetry.why_not() == ""


@pytest.mark.usefixtures("bare")
def test_library_is_looked_for_without_the_package(monkeypatch):
    assert not nvml.has_library()
    monkeypatch.setattr(nvml, "LIBRARY", None)  # the process itself
    assert nvml.has_library()


def test_handle_of_an_instance_is_found_by_its_own_prefix(pynvml):
    asked = []

    def find(uuid):
        asked.append(uuid)
        if uuid.startswith("GPU-"):
            raise pynvml.NVMLError_NotFound("Not Found")
        return "handle"

    pynvml.nvmlDeviceGetHandleByUUID = find
    assert nvml.handle_of(pynvml, "a1") == "handle"
    assert asked == ["GPU-a1", "MIG-a1"]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses"])
def test_failure_of_nvml_is_one_device_error(pynvml, function):
    pynvml.nvmlDeviceGetHandleByUUID = lambda _uuid: 0
    setattr(pynvml, function, raising(pynvml.NVMLError("Not Supported")))
    with pytest.raises(DeviceError) as caught:
        process_memory("a1", "cuda:1")
    assert str(caught.value) == "cuda:1: the memory of other processes is unknown: NVML failed: Not Supported"
    assert (caught.value.code, caught.value.call, caught.value.device) == (2, "process_memory", "cuda:1")


def test_every_start_of_nvml_has_its_end(pynvml):
    calls = []
    pynvml.nvmlInit, pynvml.nvmlShutdown = lambda: calls.append("init"), lambda: calls.append("shutdown")
    pynvml.nvmlDeviceGetHandleByUUID = raising(pynvml.NVMLError("Not Supported"))
    with pytest.raises(DeviceError):
        process_memory("a1", "cuda:1")
    assert calls == ["init", "shutdown"]


@pytest.mark.usefixtures("bare")
def test_memory_of_processes_names_the_missing_package():
    with pytest.raises(DeviceError, match=r"^cuda:1: the memory of other processes is unknown: nvidia-ml-py is not"):
        process_memory("a1", "cuda:1")
