"""Workspaces of cuBLAS and cuBLASLt, by the rules of PyTorch's handle pool.

PyTorch gives cuBLAS a workspace from the caching allocator: 32 MiB on devices of capability 9.0, else 8 MiB + 128 KiB,
or what CUBLAS_WORKSPACE_CONFIG says; cuBLASLt has 1 MiB, or CUBLASLT_WORKSPACE_SIZE in KiB. In PyTorch 2.15 a workspace
lives for one call, unless TORCH_CUBLAS_WORKSPACE_CACHE is 1. In versions before, and with that setting, it is kept for
each handle and stream until torch._C._cuda_clearCublasWorkspaces(); the thread of the backward pass has its own handle.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from forebay.interop.torch.devices.emulated_memory import allocate_bytes, is_replaying
from forebay.interop.torch.kernels.scratch_memory import Scratch, bytes_by_capability
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock
from forebay.runtime.streams.stream import current_stream_for

__all__ = ["Lifetime", "blas_workspace", "clear", "lifetime", "lt_workspace", "set_lifetime"]

Lifetime = Literal["call", "process"]
_Key = tuple[int, int, int, bool, str]
_kept: dict[_Key, AnyBlock | None] = {}
_TRUE = ("1", "true", "TRUE", "on", "ON", "y", "Y", "yes", "YES")
_chosen: list[Lifetime] = []


def set_lifetime(chosen: Lifetime | None) -> None:
    """Keep workspaces for a call or for the process; None for what this version of PyTorch does."""
    _chosen[:] = [] if chosen is None else [chosen]
    clear()


def lifetime() -> Lifetime:
    """Return how long workspaces are kept."""
    if _chosen:
        return _chosen[0]
    if os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE", "") in _TRUE:
        return "process"
    return _lifetime_of_version()


@cache
def _header() -> str:
    try:
        return (Path(torch.__file__).parent / "include/ATen/cuda/CUDAContextLight.h").read_text()
    except OSError:
        return ""


def _lifetime_of_version() -> Lifetime:
    """Return "call" if this PyTorch has a handle with a workspace of its own."""
    return "call" if "CUDABlasHandleWithWorkspace" in _header() else "process"


def clear() -> None:
    """Free the workspaces that are kept, as torch._C._cuda_clearCublasWorkspaces() does."""
    _kept.clear()


def blas_workspace(scratch: Scratch) -> None:
    """Take the workspace of a call of cuBLAS."""
    size = _blas_bytes(scratch.opened)
    if lifetime() == "call":
        scratch.take(size)
    else:
        _keep(scratch.opened, "cuBLAS", size)


def lt_workspace(scratch: Scratch) -> None:
    """Take the workspace of a call of cuBLASLt. If workspaces are kept, its handle has that of cuBLAS, too."""
    if lifetime() == "call":
        scratch.take(_lt_bytes())
        return
    _keep(scratch.opened, "cuBLAS", size := _blas_bytes(scratch.opened))
    if not _is_unified():
        _keep(scratch.opened, "cuBLASLt", min(_lt_bytes(), size))


def _keep(opened: OpenDevice, library: str, size: int) -> None:
    stream = current_stream_for(opened).handle
    backward = torch._C._current_graph_task_id() != -1
    key = opened.device.index or 0, stream, threading.get_ident(), backward, library
    if key not in _kept and not is_replaying():
        _kept[key] = allocate_bytes(opened, size)


def _blas_bytes(opened: OpenDevice) -> int:
    setting = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pairs = re.findall(r":([0-9]+):([0-9]+)", setting)
    if pairs:
        return sum(int(size) * 1024 * int(count) for size, count in pairs)
    return bytes_by_capability(opened, _default_bytes, "cuBLAS")


def _default_bytes(capability: tuple[int, int]) -> int:
    return 32 << 20 if capability == (9, 0) else 2 * (4096 << 10) + 8 * (16 << 10)


def _lt_bytes() -> int:
    try:
        return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", "1024")) * 1024
    except ValueError:
        return 1 << 20


def _is_unified() -> bool:
    """Return True if cuBLASLt uses the workspace of cuBLAS: by default in versions that know their sizes."""
    setting = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "")
    if setting:
        return setting in _TRUE
    return "std::pair<at::DataPtr" in _header() or "WithWorkspace" in _header()
