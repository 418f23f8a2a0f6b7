"""Scaled dot product attention with each of its backends, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.workloads.workload import Setting, Step, workload

BATCH, HEADS, TIMES, WIDTH = 8, 16, 1024, 64

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def attend(backend: str, setting: Setting) -> Step:
    """Return a step of causal attention, and of attention with a mask where the backend can have one."""
    allowed = _BACKENDS[backend] if setting.device == "cuda" else [*_BACKENDS.values()]  # the CPU has not all
    shape = setting.batch(BATCH), HEADS, setting.length(TIMES), WIDTH
    tensors = [torch.randn(shape, device=setting.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    mask = torch.zeros(shape[2], shape[2], device=setting.device, dtype=torch.bfloat16)

    def step() -> Any:
        total = torch.zeros((), device=setting.device)
        for options in ({"is_causal": True}, {"dropout_p": 0.1}, {"attn_mask": mask}):
            if (backend == "flash" and "attn_mask" in options) or (backend == "cudnn" and "is_causal" not in options):
                continue  # it cannot, or not in every version
            for each in tensors:
                each.grad = None
            with sdpa_kernel(allowed):
                mixed = F.scaled_dot_product_attention(*tensors, **options)
                mixed.sum().backward()
            total += mixed.detach().float().square().mean()
        return total

    return step


for _backend in _BACKENDS:
    workload(f"attention_{_backend}")(partial(attend, _backend))
