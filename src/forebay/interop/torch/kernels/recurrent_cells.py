"""Fused cells of recurrent networks on emulated devices, which PyTorch has for CUDA only.

The whole layers of cuDNN (torch.nn.LSTM, GRU) are not emulated: they run cell by cell, and need other memory than on a
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices.emulated_memory import open_torch_device
from forebay.interop.torch.kernels.scratch_memory import give, values_of

__all__ = ["RNN_KERNELS"]


def _sum(*parts: torch.Tensor | None) -> torch.Tensor:
    total = None
    for part in parts:
        if part is not None:
            total = values_of(part) if total is None else total + values_of(part)
    if total is None:
        raise ValueError("a sum needs a part")
    return total


def _lstm(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    opened = open_torch_device(cx.device)
    enter, forget, change, leave = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    enter, forget, change, leave = enter.sigmoid(), forget.sigmoid(), change.tanh(), leave.sigmoid()
    memory = forget * values_of(cx) + enter * change
    gates = give(torch.cat([enter, forget, change, leave], 1), opened)
    return give(leave * memory.tanh(), opened), give(memory, opened), gates


def _lstm_backward(
    grad_hy: torch.Tensor | None, grad_cy: torch.Tensor | None, cx: torch.Tensor, cy: torch.Tensor,
    workspace: torch.Tensor, has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    if grad_hy is None and grad_cy is None:
        return None, None, None
    opened = open_torch_device(cx.device)
    enter, forget, change, leave = values_of(workspace).chunk(4, 1)
    memory = values_of(cy).tanh()
    of_hidden = torch.zeros_like(memory) if grad_hy is None else values_of(grad_hy)
    of_memory = of_hidden * leave * (1 - memory * memory)
    if grad_cy is not None:
        of_memory = of_memory + values_of(grad_cy)
    gates = torch.cat(
        [
            of_memory * change * enter * (1 - enter),
            of_memory * values_of(cx) * forget * (1 - forget),
            of_memory * enter * (1 - change * change),
            of_hidden * memory * leave * (1 - leave),
        ],
        1,
    )
    results = give(gates, opened), give(of_memory * forget, opened)
    return *results, give(gates.sum(0), opened) if has_bias else None


def _gru(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    opened = open_torch_device(hx.device)
    from_input, from_hidden = _sum(input_gates, input_bias).chunk(3, 1), _sum(hidden_gates, hidden_bias).chunk(3, 1)
    reset, keep = (one.add(other).sigmoid() for one, other in zip(from_input[:2], from_hidden[:2], strict=True))
    new = (from_input[2] + reset * from_hidden[2]).tanh()
    before = values_of(hx)
    kept = give(torch.cat([reset, keep, new, before, from_hidden[2]], 1), opened)
    return give(new + keep * (before - new), opened), kept


def _gru_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor | None, ...]:
    opened = open_torch_device(grad_hy.device)
    reset, keep, new, before, hidden = values_of(workspace).chunk(5, 1)
    outer = values_of(grad_hy)
    of_new = outer * (1 - keep) * (1 - new * new)
    of_keep = outer * (before - new) * keep * (1 - keep)
    of_reset = of_new * hidden * reset * (1 - reset)
    of_input = torch.cat([of_reset, of_keep, of_new], 1)
    of_hidden = torch.cat([of_reset, of_keep, of_new * reset], 1)
    results = [give(each, opened) for each in (of_input, of_hidden, outer * keep)]
    biases = [give(each.sum(0), opened) if has_bias else None for each in (of_input, of_hidden)]
    return *results, *biases


def _never(*args: object, **kwargs: object) -> bool:
    return False


RNN_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_lstm_cell": _lstm,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "aten::_thnn_fused_gru_cell": _gru,
    "aten::_thnn_fused_gru_cell_backward": _gru_backward,
    "aten::_use_cudnn_ctc_loss": _never,
    "aten::_use_cudnn_ctc_loss.Tensor": _never,
    "aten::_use_miopen_ctc_loss": _never,
    "aten::_use_miopen_ctc_loss.Tensor": _never,
}
