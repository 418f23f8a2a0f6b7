"""Copies between emulated devices: the functions of torch._C behind `torch.cuda.comm` and `DataParallel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.cuda.nccl

import forebay.cuda.nccl
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_communication"]


def replace_communication(names: NameReplacements) -> None:
    """Replace the functions, which only a build with CUDA has."""
    for function in (
        _broadcast, _broadcast_coalesced, _broadcast_out, _gather, _gather_out, _scatter, _scatter_out,
    ):  # fmt: skip
        names.replace(torch._C, function.__name__, function)
    names.replace(torch.cuda.nccl, "is_available", _no_nccl)
    names.replace(torch.cuda.nccl, "version", forebay.cuda.nccl.version)


def _no_nccl(tensors: object) -> bool:
    """Return False: PyTorch's operators then compute sums."""
    return False


def _on(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    index = device.index if isinstance(device, torch.device) else device
    return tensor.to("cpu" if index == -1 else torch.device("cuda", index))


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(_on(tensor, each) for each in devices)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[_on(each, device) for each in tensors] for device in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(each.copy_(tensor) for each in out)


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0,
    streams: Sequence[Any] | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split([*chunk_sizes], dim)
    return tuple(_on(chunk, device) for chunk, device in zip(chunks, devices, strict=False))


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Sequence[Any] | None = None
) -> tuple[torch.Tensor, ...]:
    chunks = tensor.split([each.size(dim) for each in out], dim)
    return tuple(each.copy_(chunk) for each, chunk in zip(out, chunks, strict=True))


def _gather(tensors: Sequence[torch.Tensor], dim: int = 0, destination: int | None = None) -> torch.Tensor:
    device = torch.cuda.current_device() if destination is None else destination
    return torch.cat([_on(each, device) for each in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int = 0) -> torch.Tensor:
    chunks = out.split([each.size(dim) for each in tensors], dim)
    for each, chunk in zip(tensors, chunks, strict=True):
        chunk.copy_(each)
    return out
