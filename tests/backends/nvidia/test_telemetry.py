"""Sensors of NVIDIA's GPUs, and the processes that use their memory, with the software NVML."""

from __future__ import annotations

import os
import sys

import pytest
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, os, subprocess, sys
import forebay
from forebay import cuda
from forebay.backends import override_driver
from forebay.backends.nvidia.driver import CudaDriver

overriding = override_driver(CudaDriver())
overriding.__enter__()  # for the whole process
MIB = 1 << 20

def contexts():
    return ctypes.CDLL("libcuda.so.1").softcuda_live(b"contexts")
"""
WITHOUT_PYNVML = "import sys; sys.modules['pynvml'] = None\n"
UUIDS = ["GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"]


def output_of(program: str, **variables: str) -> list[str]:
    return lines_of(BEGIN + program, **{"SOFTCUDA_MACHINE": f"test-{os.getpid()}", **variables})


def test_every_sensor_is_read_without_a_context():
    program = """
names = "device_memory_used memory_usage utilization temperature power_draw clock_rate".split()
for index in range(2):
    print(*(getattr(cuda, name)(index) for name in names))
print(cuda.list_gpu_processes(1), contexts(), cuda.is_initialized())
"""
    assert output_of(program) == [
        "0 20 40 50 300000 1000",
        "0 21 41 51 300001 1001",
        "GPU:1",
        "no processes are running 0 False",
    ]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"SOFTCUDA_ORDER": "2,0,1"}, [2, 0, 1]),
        ({"SOFTCUDA_ORDER": "2,0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2]),
        ({"SOFTCUDA_ORDER": "2,0,1", "CUDA_VISIBLE_DEVICES": "1,0,9,2"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0001,GPU-2"}, [1, 0, 2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,0,GPU-2"}, [1]),
        ({"SOFTCUDA_MIG": "1", "CUDA_VISIBLE_DEVICES": "MIG-a1"}, [1]),
        ({"SOFTCUDA_MIG": "2", "CUDA_VISIBLE_DEVICES": "GPU-2"}, [2]),
    ],
)
def test_device_is_found_by_its_uuid(variables, expected):
    program = """
print([cuda._get_nvml_device_index(index) for index in range(cuda.device_count())], contexts())
"""
    assert output_of(program, SOFTCUDA_DEVICES="3", **variables) == [f"{expected} 0"]


def test_changed_environment_does_not_change_the_device():
    program = """
print(cuda.device_count(), cuda._get_nvml_device_index(0))
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
print(cuda.device_count(), cuda._get_nvml_device_index(0), cuda.temperature(0))
"""
    assert output_of(program, CUDA_VISIBLE_DEVICES="1") == ["1 1", "1 1 51"]


def test_instance_of_a_gpu_has_its_own_memory():
    program = """
kept = forebay.empty(10 * MIB, dtype=forebay.uint8, device="cuda")
print(cuda.device_memory_used() // MIB, cuda.get_device_properties(0).total_memory // MIB)
print(cuda.list_gpu_processes().splitlines()[0])
try:
    cuda.utilization()
except Exception as error:  # of pynvml
    print(error)
"""
    found = output_of(program, SOFTCUDA_MIG="1", CUDA_VISIBLE_DEVICES="MIG-a1")
    assert found == ["10 4096", "GPU:1", "Not Supported"]


def test_forked_child_reads_sensors():
    program = """
kept = forebay.empty(10, device="cuda")
child = os.fork()
if not child:
    print(cuda.temperature(0), cuda._get_nvml_device_index(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert output_of(program, CUDA_VISIBLE_DEVICES="1") == ["51 1"]


PROCESSES = """
other = subprocess.Popen([sys.executable, "-c", '''
import sys
from forebay.backends.nvidia.driver import CudaDriver
port = CudaDriver().open(1)
kept = port.reserve(6 << 20)
print("ready", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
port = CudaDriver().open(1)
kept = port.reserve(4 * MIB)
space = port.reserve_space(4 * MIB, 2 * MIB)
port.commit(space, 2 * MIB)
"""


def test_port_reports_the_memory_of_each_process():
    program = (
        PROCESSES
        + """
from forebay.spi import ProcessUsage
print(isinstance(port, ProcessUsage), {("self" if pid == os.getpid() else pid == other.pid): used // MIB
       for pid, used in port.process_memory().items()})
print(CudaDriver().open(0).process_memory())
other.kill()
other.wait(60)
print(len(port.process_memory()))
"""
    )
    found, empty, left = output_of(program)
    assert found in ("True {'self': 6, True: 6}", "True {True: 6, 'self': 6}")
    assert (empty, left) == ("{}", "1")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (
            "ctypes.CDLL('libnvidia-ml.so.1').softnvml_fail(b'nvmlDeviceGetComputeRunningProcesses', 3)",
            "3 cuda:1: the memory of other processes is unknown: NVML failed: Not Supported",
        ),
        (
            "ctypes.CDLL(None).setenv(b'SOFTCUDA_NVML_ERROR', b'18', 1)",
            "18 cuda:1: the memory of other processes is unknown: NVML failed: ",
        ),
        (
            "sys.modules['pynvml'] = None",
            "0 cuda:1: the memory of other processes is unknown: nvidia-ml-py is not installed, which reads NVML: pip",
        ),
    ],
    ids=["function", "driver", "package"],
)
def test_failing_nvml_is_one_error_and_does_not_hide_another(failure, expected):
    program = f"""
port = CudaDriver().open(1)
{failure}
try:
    port.process_memory()
except forebay.DeviceError as error:
    print(error.code, error)
try:
    forebay.empty(1 << 40, dtype=forebay.uint8, device="cuda:1")
except forebay.OutOfMemory as error:
    print("this process has" in str(error))
"""
    found, hidden = output_of(program)
    assert found.startswith(expected)
    assert hidden == "False"


def test_devices_are_counted_without_cuda():
    program = """
print(cuda._raw_device_count_nvml(), cuda._raw_device_uuid_nvml(), cuda._device_count_nvml(), contexts())
"""
    assert output_of(program) == [f"2 {UUIDS} 2 0"]
    assert output_of(program, CUDA_VISIBLE_DEVICES=UUIDS[1][:8]) == [f"2 {UUIDS} 1 0"]


def test_base_installation_counts_by_cuda_and_names_the_missing_package():
    program = """
print(cuda._HAS_PYNVML, cuda.device_count(), cuda.is_available(), cuda._device_count_nvml())
for ask in (cuda.temperature, cuda._raw_device_count_nvml):
    try:
        ask()
    except (ModuleNotFoundError, OSError) as error:
        print(type(error).__name__, error)
print(cuda.list_gpu_processes())
"""
    assert output_of(WITHOUT_PYNVML + program) == [
        "False 2 True -1",
        "ModuleNotFoundError nvidia-ml-py does not seem to be installed or it can't be imported.",
        "OSError nvidia-ml-py is not installed, which reads NVML: pip install 'forebay[cuda]'",
        "pynvml module not found, please install nvidia-ml-py",
    ]


def test_error_for_missing_memory_names_the_processes():
    program = (
        PROCESSES
        + """
kept = forebay.empty(10 * MIB, dtype=forebay.uint8, device="cuda:1")
try:
    forebay.empty(1 << 40, dtype=forebay.uint8, device="cuda:1")
except forebay.OutOfMemory as error:
    print("Including non-forebay memory, this process has 16.00 MiB memory in use." in str(error),
          f"Process {other.pid} has 6.00 MiB memory in use." in str(error))
other.kill()
other.wait(60)
"""
    )
    assert output_of(program) == ["True True"]
