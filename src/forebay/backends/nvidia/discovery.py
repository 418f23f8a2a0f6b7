"""Discovery of NVIDIA's GPUs: how many CUDA can use, or the reason why there are none. Creates no context."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.backends.nvidia import nvml
from forebay.backends.nvidia.calls import driver_api
from forebay.vendor import cuda_errors, driver_timeout

__all__ = ["Discovery", "discover"]

_LOWEST_VERSION = 13000  # of the driver's interface
_DEVICES = Path("/dev")
_DEVICE_NODES = ("nvidiactl", "dxg", "nvmap", "nvhost-ctrl")  # the latter ones in WSL and on Tegra
_FORKED = (
    "CUDA was initialised before this process was forked, and does not survive a fork: start processes with the "
    "method 'spawn' or 'forkserver'"
)
_NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx\n"
)
_NO_GPUS = "No CUDA GPUs are available: "
_REMEDIES = {
    802: "the machine's GPUs are not ready: check the service nvidia-fabricmanager",
    803: "the driver's library and its kernel module have different versions: restart the machine or the container",
    804: "the library cuda-compat supports data center GPUs only: remove it from the library path",
}


@dataclass(frozen=True)
class Discovery:
    """The number of GPUs, or the reason why there are none, the driver's code for it, and PyTorch's text."""

    count: int = 0
    reason: str = ""
    code: int = 0
    pytorch_text: str = ""

    def text(self) -> str:
        """Return the reason for a user: after PyTorch's text, and with a way to continue without a GPU."""
        advice = "; forebay can emulate a GPU: forebay.emulate('cuda')" if self.pytorch_text else ""
        return f"{self.pytorch_text}{self.reason}{advice}"


class _Start:
    """The start of the driver in this process, on a thread of its own: the driver may not return."""

    def __init__(self, api: Any) -> None:
        self.process: int = os.getpid()
        self.visible: str | None = _visible()
        self._api = api
        self._ended = threading.Event()
        self._awaited = False
        self._result: Discovery | Exception | None = None
        try:
            threading.Thread(target=self._run, name="forebay cuInit", daemon=True).start()
        except RuntimeError:  # the interpreter is being finalized
            self._run()

    def result(self) -> Discovery:
        """Return the result. Waits for it once, at most for some time."""
        limit = driver_timeout()
        ended = self._ended.wait(0.0 if self._awaited else limit)
        self._awaited = True
        if not ended:
            reason = f"the NVIDIA driver does not respond: cuInit did not return within {limit:g} seconds"
            return Discovery(reason=reason)
        if isinstance(self._result, Discovery):
            return self._result
        first_line = str(self._result).strip().partition("\n")[0]
        if isinstance(self._result, (ValueError, KeyError)):  # of the enumeration of codes
            return Discovery(
                reason=f"the NVIDIA driver is newer than cuda-bindings, which has no name for: {first_line}"
            )
        reason = f"the NVIDIA driver is not installed, or not visible in this container ({first_line})"
        return Discovery(reason=reason, pytorch_text=_NO_DRIVER)

    def failed(self) -> bool:
        """Return True if the driver has started without a GPU, or not at all."""
        return self._ended.is_set() and not (isinstance(self._result, Discovery) and self._result.count)

    def _run(self) -> None:
        try:
            self._result = _start(self._api)
        except Exception as error:  # noqa: BLE001 -- cuda-bindings raises errors of several types if there is no driver
            self._result = error
        finally:
            self._ended.set()


_latest: _Start | None = None


def discover() -> Discovery:
    """Return what CUDA finds.

    The first call that finds GPUs determines the result of all later ones, as in CUDA. If it finds none, a later one
    looks again in a forked child, or if CUDA_VISIBLE_DEVICES has changed.
    """
    global _latest  # noqa: PLW0603 -- the state of the process's driver
    try:
        api = driver_api()
    except ImportError as error:
        reason = f"cuda-bindings is not installed ({error}): pip install 'forebay[cuda]'"
        return Discovery(reason=reason, pytorch_text=_NO_DRIVER)
    start = _latest
    is_forked = start is not None and start.process != os.getpid()
    if is_forked and start is not None and not start.failed():
        return Discovery(reason=_FORKED, code=cuda_errors.NOT_INITIALIZED)
    if start is None or (start.failed() and (is_forked or start.visible != _visible())):
        start = _latest = _Start(api)
    try:
        return start.result()
    except ValueError as error:  # of the setting
        return Discovery(reason=str(error))


def _start(api: Any) -> Discovery:
    code, version = (int(each or 0) for each in api.cuDriverGetVersion())
    if not code and 0 < version < _LOWEST_VERSION:
        reason = f"the NVIDIA driver supports CUDA {_dotted(version)}; forebay needs {_dotted(_LOWEST_VERSION)}"
        return Discovery(reason=reason)
    code, count = int(api.cuInit(0)[0]), 0
    if not code:
        code, count = (int(each or 0) for each in api.cuDeviceGetCount())
    if count and not code:
        return Discovery(count)
    return Discovery(
        0, _reason(api, code), code or cuda_errors.NO_DEVICE, _NO_GPUS if code in (0, cuda_errors.NO_DEVICE) else ""
    )


def _reason(api: Any, code: int) -> str:
    """Return why the driver has started with a code, or found no device."""
    if code == cuda_errors.NOT_INITIALIZED:
        return _FORKED
    visible = _visible()
    if code in (0, cuda_errors.NO_DEVICE) and visible is not None and (total := _machine_count()) != 0:
        hidden = "" if total is None else f", which hides all {total} GPUs of this machine"
        return f"CUDA_VISIBLE_DEVICES is {visible!r}{hidden}"
    if code and not _has_device_nodes():
        return (
            "the NVIDIA driver's library is installed, but there are no device nodes /dev/nvidia*: a container must be "
            "started with access to GPUs (docker run --gpus all), and the system needs the kernel module nvidia"
        )
    if code in (0, cuda_errors.NO_DEVICE):
        return "the NVIDIA driver finds no GPU"
    shown, text = _name(api, code)
    remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
    return f"the NVIDIA driver cannot be initialised: cuInit returned {shown} ({code}), {text}{remedy}"


def _name(api: Any, code: int) -> tuple[str, str]:
    """Return the driver's name and text of a code."""
    result = api.CUresult(code)
    name, text = (get(result)[1] or b"" for get in (api.cuGetErrorName, api.cuGetErrorString))
    return name.decode(errors="replace") or result.name, text.decode(errors="replace") or "unrecognized error code"


def _machine_count() -> int | None:
    """Return how many GPUs the machine has, whether or not CUDA can see them; None if that is unknown."""
    try:
        library = nvml.imported()
    except ImportError:
        return None
    try:
        library.nvmlInit()
        try:
            return int(library.nvmlDeviceGetCount())
        finally:
            library.nvmlShutdown()
    except library.NVMLError:
        return None


def _visible() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def _has_device_nodes() -> bool:
    return sys.platform != "linux" or any((_DEVICES / name).exists() for name in _DEVICE_NODES)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
