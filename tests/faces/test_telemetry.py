"""forebay.cuda's sensors: of an emulated device, by NVIDIA's library, by AMD's; and every text where there is none."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
from support.vendor_libraries import NO_AMDSMI, NO_UUIDS, SENSORS, UUIDS, refuse

import forebay
from forebay import cuda
from forebay.faces import telemetry as faces
from forebay.observe.telemetry import nvml, nvml_ctypes
from forebay.runtime.base import lazy_init

NOT_INSTALLED = "nvidia-ml-py does not seem to be installed or it can't be imported."

pytestmark = pytest.mark.usefixtures("bare")


class TestEmulated:
    @pytest.fixture(autouse=True)
    def emulated(self):
        with forebay.emulate("cuda", count=2, memory="64MiB") as emulation:
            yield emulation

    def test_an_idle_one(self):
        assert [getattr(cuda, name)() for name in SENSORS] == [0, 0, 0, 30, 115_000, 345]

    def test_the_memory_and_the_process_are_the_devices_own(self):
        tensor = forebay.empty(1000, device="cuda:1")
        assert [cuda.device_memory_used(index) for index in range(2)] == [0, 2 << 20]
        assert cuda.list_gpu_processes(0) == "GPU:0\nno processes are running"
        assert cuda.list_gpu_processes("cuda:1") == f"GPU:1\nprocess {os.getpid():>10d} uses        2.000 MB GPU memory"
        del tensor

    def test_nothing_is_initialised(self):
        for name in SENSORS:
            getattr(cuda, name)(1)
        cuda.list_gpu_processes()
        cuda._device_count_nvml()
        assert not lazy_init.of("cuda").done

    def test_its_numbers_are_the_machines(self, monkeypatch):
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

    def test_one_that_is_hidden_from_the_process_by_its_count(self):
        with pytest.raises(forebay.DeviceError, match="Invalid Argument: there is no device 5"):
            cuda.temperature(5)

    @pytest.mark.parametrize("text", ["", "-1", "MIG-x", "GPU-zz"])
    def test_where_none_is_visible(self, monkeypatch, text):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        with pytest.raises(RuntimeError, match=r"^device 0 is not visible \(CUDA_VISIBLE_DEVICES=\[\]\)$"):
            cuda.utilization()
        assert cuda._device_count_nvml() == (-1 if text == "MIG-x" else 0)

    def test_amd_does_not_count(self, rocm, monkeypatch):
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
        assert cuda.clock_rate() == 345
        assert len(cuda._parse_visible_devices()) == 64


class TestByNvidia:
    def test_every_sensor(self, pynvml):
        first = [5 << 30, 20, 40, 50, 300_000, 1000]
        assert [getattr(cuda, name)() for name in SENSORS] == first
        assert [getattr(cuda, name)("cuda:1") for name in SENSORS] == [reading + 1 for reading in first]

    def test_the_processes(self, pynvml):
        first, second = cuda.list_gpu_processes(0).splitlines()[1:]
        assert first == "process        100 uses        3.000 MB GPU memory"
        assert second == "process        101 uses          N/A MB GPU memory"
        pynvml.nvmlDeviceGetComputeRunningProcesses = lambda _handle: []
        assert cuda.list_gpu_processes(1) == "GPU:1\nno processes are running"

    def test_the_handle_is_the_librarys(self, pynvml, monkeypatch):
        assert cuda._get_pynvml_handler(1) == 1
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
        assert cuda._get_pynvml_handler() == 1

    def test_a_driver_that_is_not_loaded(self, pynvml):
        pynvml.nvmlInit = refuse(pynvml.NVMLError_DriverNotLoaded())
        for name in SENSORS:
            with pytest.raises(RuntimeError, match=r"^cuda driver can't be loaded, is cuda enabled\?$"):
                getattr(cuda, name)()
        assert cuda.list_gpu_processes() == "cuda driver can't be loaded, is cuda enabled?"

    def test_other_errors_are_the_librarys_own(self, pynvml):
        with pytest.raises(pynvml.NVMLError, match="Invalid Argument"):
            cuda.utilization(7)
        pynvml.nvmlInit = refuse(pynvml.NVMLError("Library Not Found"))
        with pytest.raises(pynvml.NVMLError, match="Library Not Found"):
            cuda.list_gpu_processes()

    def test_it_warns_of_no_deprecated_package(self, monkeypatch, tmp_path):
        (tmp_path / "pynvml.py").write_text(
            "import warnings\nwarnings.warn('deprecated', FutureWarning)\nnvmlInit = None"
        )
        monkeypatch.delitem(sys.modules, "pynvml")
        monkeypatch.syspath_prepend(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert nvml.import_error() is None
        monkeypatch.setitem(sys.modules, "pynvml", None)


class Refusing:
    """In the place of NvmlLibrary: it refuses one function."""

    def __init__(self, function):
        self.function = function

    def __getattr__(self, name):
        def call(*_arguments):
            if self.function.startswith(name):
                raise nvml_ctypes.NVMLError("Refused", code=3, call=self.function)
            return 1 if name == "nvmlDeviceGetCount" else "GPU-a"

        return call


class TestCounting:
    """Through ctypes always, as PyTorch does."""

    @pytest.mark.parametrize(
        ("function", "told"),
        [
            ("nvmlInit_v2", "Can't initialize NVML"),
            ("nvmlDeviceGetCount_v2", "Can't get nvml device count"),
            ("nvmlDeviceGetHandleByIndex_v2", "Can't get device handle"),
            ("nvmlDeviceGetUUID", "Can't get device UUID"),
        ],
    )
    def test_what_is_refused_is_warned_of(self, monkeypatch, function, told):
        monkeypatch.setattr(faces, "NvmlLibrary", lambda: Refusing(function))
        with pytest.warns(UserWarning, match=f"^{told}$"):
            assert cuda._raw_device_uuid_nvml() is None
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
        with pytest.warns(UserWarning, match=f"^{told}$"):
            assert cuda._device_count_nvml() == -1
        with (
            pytest.warns(UserWarning, match=f"^{told}$"),
            pytest.raises(RuntimeError, match=NO_UUIDS),
        ):
            cuda._get_nvml_device_index(0)

    @pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
    def test_a_count_that_is_refused(self, monkeypatch, function):
        monkeypatch.setattr(faces, "NvmlLibrary", lambda: Refusing(function))
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
    def test_what_is_visible_counts(self, monkeypatch, text, count):
        class TwoGpus(Refusing):
            def nvmlDeviceGetCount(self):  # noqa: N802 -- the library's name
                return 2

            def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 -- the library's name
                return index

            def nvmlDeviceGetUUID(self, handle):  # noqa: N802 -- the library's name
                return UUIDS[handle]

        monkeypatch.setattr(faces, "NvmlLibrary", lambda: TwoGpus("nothing"))
        if text is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert cuda._device_count_nvml() == count

    def test_without_a_library(self):
        with pytest.raises(OSError, match=r"none\.so"):
            cuda._raw_device_count_nvml()
        with pytest.raises(OSError, match=r"none\.so"):
            cuda._raw_device_uuid_nvml()
        assert cuda._device_count_nvml() == -1

    @pytest.mark.parametrize(("value", "based"), [("1", True), ("0", False), ("true", False), (None, False)])
    def test_the_switch_for_is_available(self, monkeypatch, value, based):
        monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
        if value is not None:
            monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", value)
        assert cuda._nvml_based_avail() is based


class TestWithoutAnything:
    @pytest.mark.parametrize("name", SENSORS)
    def test_a_sensor_says_what_is_missing(self, name):
        with pytest.raises(ModuleNotFoundError) as caught:
            getattr(cuda, name)()
        assert str(caught.value) == NOT_INSTALLED

    def test_the_other_names(self):
        assert cuda.list_gpu_processes() == "pynvml module not found, please install nvidia-ml-py"
        assert (cuda._raw_device_count_amdsmi(), cuda._device_count_amdsmi()) == (-1, -1)
        assert cuda._raw_device_uuid_amdsmi() is None
        with pytest.raises(ModuleNotFoundError) as caught:
            cuda._get_amdsmi_handler()
        assert str(caught.value) == NO_AMDSMI

    def test_what_is_installed(self):
        assert (cuda._HAS_PYNVML, cuda._PYNVML_ERR, cuda._HAS_AMDSMI, cuda._AMDSMI_ERR) == (False, None, False, None)
        with pytest.raises(AttributeError, match="_HAS_NOTHING"):
            cuda._HAS_NOTHING  # noqa: B018 -- to read it is what fails

    def test_what_is_installed_is_found_out_anew(self, pynvml, rocm):
        assert (cuda._HAS_PYNVML, cuda._HAS_AMDSMI) == (True, True)

    def test_a_device_of_another_kind_is_refused(self, pynvml):
        with pytest.raises(ValueError, match="Expected a cuda device, but got: host:0"):
            cuda.utilization("host:0")


def test_nvidia_is_in_charge_where_both_are(pynvml, rocm, monkeypatch):
    monkeypatch.setattr(nvml, "installed", lambda: True)
    assert cuda.utilization() == 40
    monkeypatch.setattr(nvml, "installed", lambda: False)
    assert cuda.utilization() == 61
