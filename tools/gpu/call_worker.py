"""The process in which calls of operators run: a fork of one that has imported PyTorch, but not used CUDA.

A call may end it, hang, or leave CUDA with an error from which no later call recovers. Its lines say which call runs.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.metadata
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from gpu.call_memory import measure, reset
from gpu.operator_calls import Call, Kit
from gpu.part import REAL

__all__ = ["fork_worker"]

_PROPERTIES = (
    "name", "major", "minor", "total_memory", "multi_processor_count", "max_threads_per_multi_processor",
    "L2_cache_size", "shared_memory_per_multiprocessor", "regs_per_multiprocessor",
)  # fmt: skip
_TEXT = 300  # characters of an error that are kept


def fork_worker(torch: Any, calls: Sequence[Call], numbers: Sequence[int]) -> tuple[int, int]:
    """Start a process that runs the calls with these numbers. Return its process ID and the descriptor of its lines.

    Each line is a JSON list: ["machine", facts], ["stage", number, text], ["done", number, record], or ["lost", number,
    record] before the process ends because CUDA cannot be used any more.
    """
    read_end, write_end = os.pipe()
    process = os.fork()
    if process:
        os.close(write_end)
        return process, read_end
    status = 1
    try:
        os.close(read_end)
        with os.fdopen(write_end, "wb", buffering=0) as lines:
            status = _work(torch, calls, numbers, lines)
    except BrokenPipeError:  # the parent has what it wants
        status = 0
    except BaseException:  # noqa: BLE001 -- shown in the log of the part; a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(status)


def _work(torch: Any, calls: Sequence[Call], numbers: Sequence[int], lines: BinaryIO) -> int:
    def say(*line: Any) -> None:
        lines.write(json.dumps(line, default=str).encode() + b"\n")

    faulthandler.enable(2)  # into the log of the part
    warnings.simplefilter("ignore")
    parent = os.getppid()
    has_gpu = torch.cuda.is_available()
    if not has_gpu and os.environ.get(REAL):
        raise RuntimeError("PyTorch finds no GPU, although the driver has one")
    torch.set_num_threads(1)  # inputs on the CPU are small
    kit = Kit(torch, "cuda" if has_gpu else "cpu", reduced=not has_gpu)
    if has_gpu:
        torch.empty(1, device="cuda")
    say("machine", machine(torch, has_gpu=has_gpu))
    gc.disable()
    for number in numbers:
        if os.getppid() != parent:
            return 1
        started = time.monotonic()
        try:
            record = measure(kit, calls[number], lambda stage, at=number: say("stage", at, stage))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 -- what a call refuses is a fact
            record = {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:_TEXT]}
            del error
        try:
            reset(kit)
            if has_gpu:
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 -- CUDA has an error that stays
            say("lost", number, {**record, "lost": f"{type(error).__name__}: {error}".partition("\n")[0][:_TEXT]})
            return 1
        say("done", number, {**record, "seconds": round(time.monotonic() - started, 4)})
    return 0


def machine(torch: Any, *, has_gpu: bool) -> dict[str, Any]:
    """Return the versions and settings on which allocations may depend, as far as this PyTorch tells them."""
    backends = torch.backends
    asked: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.__version__,
        "cuda": lambda: torch.version.cuda,
        "libraries": _libraries,
        "matmul.allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": lambda: backends.cudnn.allow_tf32,
        "cudnn.enabled": lambda: backends.cudnn.enabled,
        "cudnn.benchmark_limit": lambda: backends.cudnn.benchmark_limit,
    }
    if has_gpu:
        asked |= {name: lambda at=name: getattr(torch.cuda.get_device_properties(0), at) for name in _PROPERTIES}  # type: ignore[misc]
        asked["cudnn"] = backends.cudnn.version
        asked["blas"] = lambda: str(backends.cuda.preferred_blas_library())
        asked["linalg"] = lambda: str(backends.cuda.preferred_linalg_library())
        asked["driver"] = lambda: Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
        for name in dir(torch._C):
            if "orkspace" in name and "get" in name.lower():
                asked[name] = getattr(torch._C, name)
    prefixes = ("CUBLAS", "CUDNN", "TORCH_CU", "PYTORCH_", "CUDA_")
    facts: dict[str, Any] = {
        "device": "cuda" if has_gpu else "cpu",
        "variables": {name: value for name, value in os.environ.items() if name.startswith(prefixes)},
    }
    for name, ask in asked.items():
        with suppress(Exception):
            facts[name] = ask()
    return facts


def _libraries() -> dict[str, str]:
    found = importlib.metadata.distributions()
    return {each.name: each.version for each in found if (each.name or "").startswith(("nvidia-", "triton"))}
