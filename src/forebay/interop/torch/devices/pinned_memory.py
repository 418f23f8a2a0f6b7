"""Pinned CPU tensors of PyTorch, in forebay's cache of pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from forebay._base.device_spec import Device
from forebay.interop.torch.devices._storage_owners import PinnedOwner, is_pinned_storage
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.devices import current, open_device
from forebay.runtime.memory._dlpack import export_memory

__all__ = ["is_pinned", "is_pinned_kernel", "pin", "replace_pinned_memory"]

_CPU = (1, 0)  # kDLCPU
_FACTORIES = ("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace",
              "logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm",
              "tensor", "zeros", "zeros_like")  # fmt: skip


def replace_pinned_memory(names: NameReplacements) -> None:
    """Let PyTorch's methods and factories use pinned memory of forebay."""
    names.replace(torch.Tensor, "pin_memory", _pin_memory)
    names.replace(torch.Tensor, "is_pinned", _is_pinned)
    builtins: Any = torch.jit._builtins
    scripted = {**builtins._get_builtin_table()}  # TorchScript's operators by the id of the function
    for name in _FACTORIES:
        factory = getattr(torch, name)
        names.replace(torch, name, pinning := _pinning(name, factory))
        if id(factory) in scripted:
            scripted[id(pinning)] = scripted[id(factory)]
    names.replace(builtins, "_builtin_table", scripted)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a CPU tensor in pinned memory, or the tensor if it is pinned."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if is_pinned(tensor) or not tensor.numel():
        return tensor
    dense = torch.empty_like(tensor, device="meta")  # with PyTorch's choice of the strides
    nbytes = dense.untyped_storage().nbytes()
    device = Device("cuda", current.current_index("cuda"))
    block = open_device.pinned_allocator(device).allocate(nbytes)
    owner = PinnedOwner(block)
    capsule = export_memory(
        block.address, (nbytes,), (1,), (1, 8), _CPU, owner, versioned=False, read_only=False, copied=False
    )
    memory: torch.Tensor = torch._C._from_dlpack(capsule)
    owner.attach(memory.untyped_storage()._cdata)
    made = torch.empty(0, dtype=tensor.dtype).set_(memory.untyped_storage(), 0, dense.shape, dense.stride())
    return made.copy_(tensor)  # recorded by autograd


def is_pinned(tensor: torch.Tensor) -> bool:
    """Return True if the memory of a CPU tensor is pinned."""
    return tensor.device.type == "cpu" and is_pinned_storage(tensor.untyped_storage()._cdata)


def is_pinned_kernel(tensor: torch.Tensor, device: Any = None) -> bool:
    """Return what C++ code asks for. DDP's, in the backward pass, pins memory itself, and asserts that it is pinned."""
    return is_pinned(tensor) or torch._C._current_graph_task_id() != -1


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return pin(self)


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return is_pinned(self)


def _pinning(name: str, factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory whose argument `pin_memory` needs no driver."""

    @wraps(factory)
    def create(*args: Any, pin_memory: bool = False, **keywords: Any) -> torch.Tensor:
        made = factory(*args, **keywords)
        if not pin_memory:
            return made
        if made.device.type != "cpu":
            raise RuntimeError("Only dense CPU tensors can be pinned")
        return pin(made.detach()).requires_grad_(made.requires_grad)

    create.__module__, create.__qualname__ = "torch", name  # by which it is pickled
    return create
