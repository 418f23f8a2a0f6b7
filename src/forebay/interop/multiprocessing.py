"""Tensor transfer between processes through `multiprocessing`, without a copy (`torch.multiprocessing.reductions`).

Opening the first device registers the reductions. This module also re-exports the names of `multiprocessing`, as
`torch.multiprocessing` does.

Both processes use the same memory. The sender keeps it until the receiver's last tensor over it is released or the
receiver ends; the receiver's stream waits for the sender's pending work. Memory that cannot be shared, such as an
array's, is copied. A forked process cannot use emulated devices: use `spawn` or `forkserver`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403 -- re-exported
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from forebay.runtime.devices.sharing_port import can_share
from forebay.runtime.memory import ipc_memory
from forebay.runtime.tensors.tensor import Tensor

__all__ = [*multiprocessing.__all__, "rebuild_tensor", "reduce_tensor"]  # noqa: PLE0604 -- a list of names


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Return the pickle reduction of a tensor: a handle of its shared memory, and its layout.

    As `torch.multiprocessing.reductions.reduce_tensor`. Called by `ForkingPickler`. If the memory cannot be shared, the
    result is the tensor's own reduction, which copies the data.
    """
    storage = tensor.raw_storage
    owned = storage.nbytes == 0 or storage.block is not None or ipc_memory.was_received(storage)
    if not (can_share(type(storage.opened.port)) and owned):
        return tensor.__reduce__()
    offset = tensor.raw_address() - storage.address if tensor.numel() else 0
    return rebuild_tensor, (ipc_memory.send(storage), tensor.numpy_dtype, tensor.shape, tensor.byte_strides, offset)


def rebuild_tensor(
    sent: ipc_memory.StorageHandle, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Tensor:
    """Return the received tensor, over the sender's memory. Opens the device. Strides and offset are in bytes."""
    storage = ipc_memory.receive(sent)
    return Tensor(storage, dtype, shape, strides, offset)


ForkingPickler.register(Tensor, reduce_tensor)
