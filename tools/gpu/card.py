"""The GPU that a run uses, and whether it is the software driver of tests/softcuda: `python -m gpu.card` prints both.

It is found in a process of its own, as a broken driver may hang, and without forebay, which may not be compiled yet.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Card", "find_card", "is_software"]

LIMIT = 60.0  # seconds for the driver to start
BUSY = 1 << 30  # bytes in use from which another program is assumed to use the GPU


class NoCard(Exception):
    """There is no GPU; the text is the reason."""


@dataclass(frozen=True)
class Card:
    """Names of a GPU and its driver, for the results of a run."""

    name: str
    driver: str
    count: int  # GPUs that CUDA can use
    software: bool  # the software driver, which has no hardware
    capability: tuple[int, int] = (0, 0)
    in_use: str = ""  # by other programs, in words


def find_card(variables: Mapping[str, str]) -> Card:
    """Describe the first GPU.

    Raises
    ------
    NoCard
        If there is none.
    """
    command = [sys.executable, "-m", "gpu.card"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()  # it may be stuck in the driver: nothing waits for its end
        raise NoCard(f"the NVIDIA driver does not respond within {LIMIT:.0f} s") from None
    if process.returncode:
        raise NoCard((errors.strip().splitlines() or ["no output"])[-1])
    found = json.loads(output.strip().splitlines()[-1])
    if "reason" in found:
        raise NoCard(found["reason"])
    return Card(**{**found, "capability": tuple(found["capability"])})


def is_software() -> bool:
    """Return True if the driver's library is that of tests/softcuda."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "softcuda_live")
    except OSError:
        return False


def _describe() -> Card:
    """Ask the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoCard(f"NVIDIA's driver is not installed, or not visible in this container ({error})") from None
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    for function, arguments in (
        ("cuInit", (0,)),
        ("cuDriverGetVersion", (ctypes.byref(version),)),
        ("cuDeviceGetCount", (ctypes.byref(count),)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceGetName", (name, len(name), device)),
    ):
        if code := getattr(driver, function)(*arguments):
            raise NoCard(f"{function} returned {code}: look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
    capability = (_attribute(driver, device, 75), _attribute(driver, device, 76))
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    release, in_use = _from_nvml()
    text = f"{release} ({cuda})" if release else cuda
    return Card(name.value.decode(errors="replace"), text, count.value, is_software(), capability, in_use)


def _attribute(driver: Any, device: Any, number: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _from_nvml() -> tuple[str, str]:
    """Return the version of the driver's release, and who uses the first GPU; empty texts without NVML."""
    with suppress(Exception):  # both are only shown; nvidia-ml-py has errors of its own
        import pynvml

        pynvml.nvmlInit()
        try:
            release = pynvml.nvmlSystemGetDriverVersion()
            return release.decode() if isinstance(release, bytes) else str(release), _in_use(pynvml)
        finally:
            pynvml.nvmlShutdown()
    return "", ""


def _in_use(nvml: Any) -> str:
    """Return who uses the first GPU, in words. The run has not used it yet."""
    with suppress(Exception):
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        used = int(nvml.nvmlDeviceGetMemoryInfo(device).used)
        others = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)]
        if others or used > BUSY:
            pids = f" (processes {', '.join(map(str, others))})" if others else ""
            return f"{used / (1 << 30):.2f} GiB of the GPU are in use by other programs{pids}"
    return ""


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(_describe())))
    except NoCard as reason:
        print(json.dumps({"reason": str(reason)}))
