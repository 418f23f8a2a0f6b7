"""Workspaces that cuDNN may request for convolutions: an estimate of the most, which is noted, and not allocated.

# Note [Workspaces of cuDNN]
For each pass of a convolution, cuDNN chooses an algorithm by rules that are not published. PyTorch requests the
workspace of that algorithm from the caching allocator, returns it when the pass is queued, and takes another algorithm
if memory is short. Peaks of convolutional networks that were recorded on GPUs lie between those without any workspace
and those with twice the bytes of input, output and weight for each backward pass of a dense convolution: algorithms for
channels that are last copy all three, others transform them to more elements. Convolutions with a window of one element
and those by single channels need none, and the workspaces of forward passes of training become activations. So the
history of the run is the lower end; for the upper end it is replayed with these requests, each of which may fail:
`forebay.interop.torch.attribution.workspace_log`. It decides whether a program is tight, as the upper end of what is
outside the allocator does. Rejected: to allocate the estimate, with which no figure of a program with convolutions
would be exact; and the largest workspace alone, as smaller tensors take its memory before it is needed again.
Test: tests/interop/torch/test_recorded_convolutions.py::test_recorded_peaks_are_in_the_range
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.backends.cudnn

from forebay.interop.torch.devices.emulated_memory import is_replaying
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["MOST", "note_pass", "set_listener"]

MOST = 2  # the workspace of a pass, in bytes for each byte of the input, the output and the weight

_Listener: TypeAlias = Callable[[OpenDevice, int, bool], object]
_listener: _Listener | None = None


def set_listener(listener: _Listener | None) -> None:
    """Call a function with each workspace that cuDNN may request from now on; None for no function.

    Its arguments are the device, the bytes, and whether it is for a forward pass of which autograd takes notice.
    """
    global _listener  # noqa: PLW0603 -- that of the process
    _listener = listener


def note_pass(
    opened: OpenDevice, given: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, groups: int, *,
    is_forward: bool = False,
) -> None:  # fmt: skip
    """Note that cuDNN may request a workspace for a pass of a convolution now."""
    if _listener is None or is_replaying() or not torch.backends.cudnn.enabled:
        return
    window = weight.shape[2:]
    if window.numel() == 1 or groups == max(given.shape[1], output.shape[1]):
        return
    elements = given.numel() + weight.numel() + output.numel()
    _listener(opened, MOST * elements * given.element_size(), is_forward and torch.is_grad_enabled())
