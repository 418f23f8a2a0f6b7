"""Conditions of graphs, which a kernel sets."""

from __future__ import annotations

import struct

from forebay.backends.nvidia.kernels.launch import KernelQueue, launch_packed
from forebay.backends.nvidia.kernels.sources import own_program

__all__ = ["launch_set_condition"]

_WORD = struct.Struct("=Q")


def launch_set_condition(queue: KernelQueue, condition: int, address: int) -> None:
    """Queue the assignment of a byte to the condition of a conditional node.

    The queue is captured. `condition` is the driver's handle; the byte at `address` is read when the kernel runs.
    """
    function = queue.context.modules.own_function(("condition",), "set_condition", lambda: own_program("condition.cu"))
    launch_packed(queue, function, (1, 1, 1), (1, 1, 1), [_WORD.pack(condition), _WORD.pack(address)])
