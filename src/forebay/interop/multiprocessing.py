"""Tensors between processes without a copy: Python's multiprocessing, which passes forebay's tensors as shared memory.

Importing `forebay` is enough. This module has multiprocessing's names besides, as torch.multiprocessing has.
(`torch.multiprocessing.reductions`)

Both processes see one memory. The sender's stays until the receiver's last tensor over it is gone, or the receiver; the
receiver's stream waits for what the sender's had to do. What cannot be shared, as an array's memory, is copied. A
process that is forked has no devices: use `spawn` or `forkserver`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import *  # noqa: F403 -- the same names
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from forebay.runtime.memory import ipc_memory
from forebay.runtime.tensors.tensor import Tensor

__all__ = [*multiprocessing.__all__, "rebuild_tensor", "reduce_tensor"]  # noqa: PLE0604 -- they are names


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor becomes on its way: where its memory is, and how it looks at that."""
    storage = tensor.storage
    ours = storage.nbytes == 0 or storage.block is not None or ipc_memory.was_received(storage)
    if not (ipc_memory.can_share(type(storage.opened.port)) and ours):
        return tensor.__reduce__()
    offset = tensor.data_ptr() - storage.address if tensor.numel() else 0
    return rebuild_tensor, (ipc_memory.send(storage), tensor.dtype, tensor.shape, tensor.byte_strides, offset)


def rebuild_tensor(
    sent: ipc_memory.Sent, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Tensor:
    """The tensor, in the process that received it. Opens the device."""
    storage = ipc_memory.receive(sent)
    return Tensor(storage, dtype, shape, strides, storage.address + offset)


ForkingPickler.register(Tensor, reduce_tensor)
