"""Fakes of NVIDIA's and AMD's management libraries with two GPUs: Python modules and a shared library."""

from __future__ import annotations

import os
import shlex
import subprocess
from types import ModuleType, SimpleNamespace

UUIDS = ["GPU-a0a1", "GPU-b0b1"]
SENSORS = ("device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate")
NO_AMDSMI = "amdsmi does not seem to be installed or it can't be imported."
NO_UUIDS = r"^Can't get device UUIDs$"

# After `fail(function, code)` that function returns the code. Readings differ between the devices.
NVML_SOURCE = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
static const char* failing = "";
static int failure_code;
static unsigned running = 2;
static int starts;
void fail(const char* function, int code) { failing = strdup(function); failure_code = code; }
void set_process_count(unsigned count) { running = count; }
int init_count(void) { return starts; }
#define CHECK if (!strcmp(failing, __func__)) return failure_code
int nvmlInit_v2(void) { CHECK; ++starts; return 0; }
int nvmlShutdown(void) { CHECK; --starts; return 0; }
const char* nvmlErrorString(int code) { return code == 99 ? 0 : code == 9 ? "Driver Not Loaded" : "Failed"; }
int nvmlDeviceGetCount_v2(unsigned* n) { CHECK; *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** h) {
  CHECK;
  *h = (void*)(size_t)(0x7fff00000000 + i);  // larger than an int
  return i > 1 ? 2 : 0;
}
static int at(void* h) { return (int)((size_t)h & 1); }
int nvmlDeviceGetUUID(void* h, char* to, unsigned n) {
  CHECK;
  snprintf(to, n, "GPU-%s", at(h) ? "b0b1" : "a0a1");
  return 0;
}
int nvmlDeviceGetName(void* h, char* to, unsigned n) { CHECK; snprintf(to, n, "GPU %d", at(h)); return 0; }
int nvmlDeviceGetMemoryInfo(void* h, Memory* m) {
  CHECK;
  m->total = 80ull << 30;
  m->used = (5ull << 30) + at(h);
  m->free = m->total - m->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* h, Rates* r) { CHECK; r->gpu = 40 + at(h); r->memory = 20 + at(h); return 0; }
int nvmlDeviceGetTemperature(void* h, int sensor, unsigned* t) { CHECK; *t = 50 + at(h) + 100 * sensor; return 0; }
int nvmlDeviceGetPowerUsage(void* h, unsigned* p) { CHECK; *p = 300000 + at(h); return 0; }
int nvmlDeviceGetClockInfo(void* h, int type, unsigned* c) { CHECK; *c = 1000 * type + at(h); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void* h, unsigned* n, Process* p) {
  CHECK;
  if (*n < running) { *n = running; return 7; }
  *n = running;
  for (unsigned i = 0; i < running; ++i) p[i] = (Process){100 + i, i ? ~0ull : (3ull << 20) + at(h), ~0u, ~0u};
  return 0;
}
"""


def compiled_nvml(folder) -> str:
    """Compile the fake NVML library, and return its path."""
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(NVML_SOURCE)
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return str(library)


def pynvml_module() -> ModuleType:
    """Return a fake nvidia-ml-py with two devices, whose handles are their indices."""
    module = ModuleType("pynvml")

    class NVMLError(Exception): ...

    class NVMLError_DriverNotLoaded(NVMLError): ...  # noqa: N801 -- nvidia-ml-py's name

    def handle(index):
        if index not in range(2):
            raise NVMLError("Invalid Argument")
        return index

    module.NVMLError, module.NVMLError_DriverNotLoaded = NVMLError, NVMLError_DriverNotLoaded
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = handle
    module.nvmlDeviceGetUUID = UUIDS.__getitem__
    module.nvmlDeviceGetName = lambda handle: f"GPU {handle}".encode()  # as in old versions
    module.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=(5 << 30) + handle, total=80 << 30)
    module.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=40 + handle, memory=20 + handle)
    module.nvmlDeviceGetTemperature = lambda handle, sensor: 50 + handle + 100 * sensor
    module.nvmlDeviceGetPowerUsage = lambda handle: 300_000 + handle
    module.nvmlDeviceGetClockInfo = lambda handle, clock: 1000 * clock + handle
    module.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
        SimpleNamespace(pid=100, usedGpuMemory=(3 << 20) + handle),
        SimpleNamespace(pid=101, usedGpuMemory=None),
    ]
    return module


def amdsmi_module() -> ModuleType:
    """Return a fake amdsmi of ROCm 6.4 with two devices, which HIP numbers in reverse order."""
    module = ModuleType("amdsmi")

    class AmdSmiException(Exception):
        err_code = 34

    module.AmdSmiException = AmdSmiException
    module.AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction")
    module.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")
    module.AmdSmiClkType = SimpleNamespace(GFX="gfx")
    module.amdsmi_init = lambda: None
    module.amdsmi_get_processor_handles = lambda: ["first", "second"]
    at = {"first": 0, "second": 1}.__getitem__
    module.amdsmi_get_gpu_asic_info = lambda handle: {"asic_serial": ["0xA0A1", "0xB0B1"][at(handle)]}
    module.amdsmi_get_gpu_enumeration_info = lambda handle: {"hip_id": 1 - at(handle)}
    module.amdsmi_get_gpu_vram_usage = lambda handle: {"vram_used": 7 + at(handle), "vram_total": 65536}
    module.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": 60 + at(handle), "umc_activity": 30 + at(handle)}
    module.amdsmi_get_temp_metric = lambda handle, *which: 70 + at(handle) if which == ("junction", "current") else 0
    module.amdsmi_get_power_info = lambda handle: {
        "average_socket_power": "N/A",
        "current_socket_power": 250 + at(handle),
    }
    module.amdsmi_get_clock_info = lambda handle, kind: {"clk": 1700 + at(handle)} if kind == "gfx" else {}
    module.amdsmi_get_gpu_process_list = lambda handle: [{"pid": 200, "memory_usage": {"vram_mem": 9 << 20}}]
    return module


def raising(error):
    """Return a function that raises the error."""

    def raising(*_arguments):
        raise error

    return raising
