"""Sensors of forebay.cuda: emulated devices, NVML, AMD SMI, and the errors without any of them."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
from support.vendor_libraries import NO_AMDSMI, NO_UUIDS, SENSORS, UUIDS, raising

import forebay
from forebay import cuda
from forebay.observe.telemetry import nvml
from forebay.runtime.base import lazy_init

NOT_INSTALLED = "nvidia-ml-py does not seem to be installed or it can't be imported."

pytestmark = pytest.mark.usefixtures("bare")


class TestEmulated:
    @pytest.fixture(autouse=True)
    def emulated(self):
        with forebay.emulate("cuda", count=2, memory="64MiB") as emulation:
            yield emulation

    def test_idle_device_has_idle_readings(self):
        assert [getattr(cuda, name)() for name in SENSORS] == [0, 0, 0, 30, 115_000, 345]

    def test_memory_and_processes_are_per_device(self):
        tensor = forebay.empty(1000, device="cuda:1")
        assert [cuda.device_memory_used(index) for index in range(2)] == [0, 2 << 20]
        assert cuda.list_gpu_processes(0) == "GPU:0\nno processes are running"
        assert cuda.list_gpu_processes("cuda:1") == f"GPU:1\nprocess {os.getpid():>10d} uses        2.000 MB GPU memory"
        del tensor

    def test_sensors_do_not_initialise_cuda(self):
        for name in SENSORS:
            getattr(cuda, name)(1)
        cuda.list_gpu_processes()
        cuda._device_count_nvml()
        assert not lazy_init.get("cuda").done

    def test_visible_devices_map_to_machine_indices(self, monkeypatch):
        uuids = cuda._raw_device_uuid_nvml()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert (cuda._raw_device_count_nvml(), cuda._device_count_nvml()) == (2, 1)
        assert cuda._get_nvml_device_index(0) == 1
        assert cuda._get_pynvml_handler(0).uuid() == uuids[1]
        assert cuda.list_gpu_processes(0).startswith("GPU:1\n")
        with pytest.raises(RuntimeError, match=r"^device 1 is not visible \(CUDA_VISIBLE_DEVICES=\[1\]\)$"):
            cuda.utilization(1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuids[1]},{uuids[0]}")
        assert [cuda._get_nvml_device_index(index) for index in range(2)] == [1, 0]

    def test_missing_device_raises(self):
        with pytest.raises(forebay.DeviceError, match="Invalid Argument: there is no device 5"):
            cuda.temperature(5)

    @pytest.mark.parametrize("text", ["", "-1", "MIG-x", "GPU-zz"])
    def test_error_without_visible_devices(self, monkeypatch, text):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        with pytest.raises(RuntimeError, match=r"^device 0 is not visible \(CUDA_VISIBLE_DEVICES=\[\]\)$"):
            cuda.utilization()
        assert cuda._device_count_nvml() == (-1 if text == "MIG-x" else 0)

    def test_amd_variables_are_ignored(self, rocm, monkeypatch):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
        assert cuda.clock_rate() == 345
        assert len(cuda._parse_visible_devices()) == 64


class TestNvml:
    def test_every_sensor_is_read_from_nvml(self, pynvml):
        first = [5 << 30, 20, 40, 50, 300_000, 1000]
        assert [getattr(cuda, name)() for name in SENSORS] == first
        assert [getattr(cuda, name)("cuda:1") for name in SENSORS] == [reading + 1 for reading in first]

    def test_list_gpu_processes(self, pynvml):
        first, second = cuda.list_gpu_processes(0).splitlines()[1:]
        assert first == "process        100 uses        3.000 MB GPU memory"
        assert second == "process        101 uses          N/A MB GPU memory"
        pynvml.nvmlDeviceGetComputeRunningProcesses = lambda _handle: []
        assert cuda.list_gpu_processes(1) == "GPU:1\nno processes are running"

    def test_handle_is_that_of_nvml(self, pynvml, monkeypatch):
        assert cuda._get_pynvml_handler(1) == 1
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
        assert cuda._get_pynvml_handler() == 1

    def test_unloaded_driver_is_reported(self, pynvml):
        pynvml.nvmlInit = raising(pynvml.NVMLError_DriverNotLoaded())
        for name in SENSORS:
            with pytest.raises(RuntimeError, match=r"^cuda driver can't be loaded, is cuda enabled\?$"):
                getattr(cuda, name)()
        assert cuda.list_gpu_processes() == "cuda driver can't be loaded, is cuda enabled?"

    def test_other_errors_are_passed_on(self, pynvml):
        with pytest.raises(pynvml.NVMLError, match="Invalid Argument"):
            cuda.utilization(7)
        pynvml.nvmlInit = raising(pynvml.NVMLError("Library Not Found"))
        with pytest.raises(pynvml.NVMLError, match="Library Not Found"):
            cuda.list_gpu_processes()

    def test_deprecation_warning_of_pynvml_is_suppressed(self, monkeypatch, tmp_path):
        (tmp_path / "pynvml.py").write_text(
            "import warnings\nwarnings.warn('deprecated', FutureWarning)\nnvmlInit = None"
        )
        monkeypatch.delitem(sys.modules, "pynvml")
        monkeypatch.syspath_prepend(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert nvml.import_error() is None
        monkeypatch.setitem(sys.modules, "pynvml", None)


class TestCounting:
    """PyTorch calls NVIDIA's library directly; the answers and warnings are the same."""

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            ("nvmlInit", "Can't initialize NVML"),
            ("nvmlDeviceGetCount", "Can't get nvml device count"),
            ("nvmlDeviceGetHandleByIndex", "Can't get device handle"),
            ("nvmlDeviceGetUUID", "Can't get device UUID"),
        ],
    )
    def test_failing_function_is_warned_about(self, pynvml, monkeypatch, function, message):
        setattr(pynvml, function, raising(pynvml.NVMLError("Refused")))
        with pytest.warns(UserWarning, match=f"^{message}$"):
            assert cuda._raw_device_uuid_nvml() is None
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
        with pytest.warns(UserWarning, match=f"^{message}$"):
            assert cuda._device_count_nvml() == -1
        with (
            pytest.warns(UserWarning, match=f"^{message}$"),
            pytest.raises(RuntimeError, match=NO_UUIDS),
        ):
            cuda._get_nvml_device_index(0)

    @pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
    def test_failing_count_returns_minus_1(self, pynvml, function):
        setattr(pynvml, function, raising(pynvml.NVMLError("Refused")))
        with pytest.warns(UserWarning, match="NVML|nvml"):
            assert cuda._raw_device_count_nvml() == -1

    @pytest.mark.parametrize(
        ("text", "count"),
        [
            (None, 2),
            ("", 0),
            ("1", 1),
            ("1,2,0", 1),
            ("2", 0),
            ("GPU-a", 1),
            ("GPU-b,GPU-a", 2),
            ("GPU-", 0),
            ("MIG-a", -1),
        ],
    )
    def test_count_of_visible_devices(self, pynvml, monkeypatch, text, count):
        if text is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert cuda._device_count_nvml() == count

    def test_uuids_of_old_versions_are_text(self, pynvml):
        pynvml.nvmlDeviceGetUUID = lambda handle: UUIDS[handle].encode()
        assert cuda._raw_device_uuid_nvml() == UUIDS

    def test_missing_library_raises(self, pynvml):
        pynvml.nvmlInit = raising(pynvml.NVMLError_LibraryNotFound("NVML Shared Library Not Found"))
        for count in (cuda._raw_device_count_nvml, cuda._raw_device_uuid_nvml):
            with pytest.raises(OSError, match=r"libnvidia-ml|none\.so"):
                count()
        assert cuda._device_count_nvml() == -1

    def test_missing_package_raises_as_a_missing_library(self):
        for count in (cuda._raw_device_count_nvml, cuda._raw_device_uuid_nvml):
            with pytest.raises(OSError, match="nvidia-ml-py is not installed"):
                count()
        assert cuda._device_count_nvml() == -1

    @pytest.mark.parametrize(("value", "enabled"), [("1", True), ("0", False), ("true", False), (None, False)])
    def test_nvml_based_check_is_enabled_by_the_environment(self, monkeypatch, value, enabled):
        monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
        if value is not None:
            monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", value)
        assert cuda._nvml_based_avail() is enabled


class TestWithoutLibraries:
    @pytest.mark.parametrize("name", SENSORS)
    def test_sensor_reports_the_missing_package(self, name):
        with pytest.raises(ModuleNotFoundError) as caught:
            getattr(cuda, name)()
        assert str(caught.value) == NOT_INSTALLED

    def test_other_functions_report_missing_packages(self):
        assert cuda.list_gpu_processes() == "pynvml module not found, please install nvidia-ml-py"
        assert (cuda._raw_device_count_amdsmi(), cuda._device_count_amdsmi()) == (-1, -1)
        assert cuda._raw_device_uuid_amdsmi() is None
        with pytest.raises(ModuleNotFoundError) as caught:
            cuda._get_amdsmi_handler()
        assert str(caught.value) == NO_AMDSMI

    def test_import_flags_of_telemetry_packages(self):
        assert (cuda._HAS_PYNVML, cuda._PYNVML_ERR, cuda._HAS_AMDSMI, cuda._AMDSMI_ERR) == (False, None, False, None)
        with pytest.raises(AttributeError, match="_HAS_NOTHING"):
            cuda._HAS_NOTHING  # noqa: B018 -- the access raises

    def test_import_flags_are_dynamic(self, pynvml, rocm):
        assert (cuda._HAS_PYNVML, cuda._HAS_AMDSMI) == (True, True)

    def test_device_of_another_kind_is_rejected(self, pynvml):
        with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
            cuda.utilization("cpu")


def test_nvml_is_preferred_to_amd_smi(pynvml, rocm, monkeypatch):
    monkeypatch.setattr(nvml, "installed", lambda: True)
    assert cuda.utilization() == 40
    monkeypatch.setattr(nvml, "installed", lambda: False)
    assert cuda.utilization() == 61
