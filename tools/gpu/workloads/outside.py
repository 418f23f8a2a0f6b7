"""Memory outside the allocator: what NVML counts beyond the segments, after each first use of something.

All steps run in one process, so each shows what it adds to those before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.workloads.nvml_memory import UsedMemory

__all__ = ["measure"]

SIZE = 512
_kept: list[Any] = []  # tensors, streams and graphs that live until the end


def measure(*, quick: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps that have been measured, after each of them."""
    memory = UsedMemory()
    used = memory.read()
    before = used["device"]
    steps: list[dict[str, Any]] = [{"name": "nothing", **used}]
    if memory.problem:
        steps[0]["problem"] = memory.problem
    yield steps
    for name, work in _STEPS.items():
        if quick and work in _SLOW:
            continue
        start = time.perf_counter()
        step: dict[str, Any] = {"name": name}
        try:
            work()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 -- one library may be missing; the others are measured
            step["problem"] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        step |= memory.read()
        step["allocated"], step["reserved"] = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        if before is not None and step["device"] is not None:
            step["outside"] = step["device"] - before - step["reserved"]
        step["seconds"] = round(time.perf_counter() - start, 3)
        steps.append(step)
        yield steps


def _random(dtype: torch.dtype, *shape: int) -> Any:
    return torch.randn(shape, device="cuda").to(dtype)


def _context() -> None:
    torch.cuda.init()
    torch.cuda.synchronize()


def _first_tensor() -> None:
    _kept.append(torch.empty(SIZE, SIZE, device="cuda"))


def _first_kernel() -> None:
    _kept[0].fill_(1.0)


def _several_kernels() -> None:
    x = _kept[0]
    for _ in range(2):
        (x.sin() + x).softmax(-1).sum(0).cumsum(0)


def _sort() -> None:
    torch.randint(100, (1 << 16,), device="cuda").sort()


def _matrix_product(dtype: torch.dtype) -> None:
    _random(dtype, SIZE, SIZE) @ _random(dtype, SIZE, SIZE)


def _linear_layer() -> None:
    F.linear(_random(torch.bfloat16, SIZE, SIZE), _random(torch.bfloat16, SIZE, SIZE), _random(torch.bfloat16, SIZE))


def _convolution(dtype: torch.dtype) -> None:
    weight = _random(dtype, 64, 64, 3, 3).requires_grad_()
    F.conv2d(_random(dtype, 8, 64, 56, 56), weight, padding=1).sum().backward()


def _recurrent() -> None:
    torch.nn.LSTM(64, 64).cuda()(_random(torch.float32, 16, 8, 64))


def _attention(backend: Any) -> None:
    q = _random(torch.bfloat16, 2, 8, 256, 64).requires_grad_()
    with sdpa_kernel(backend):
        F.scaled_dot_product_attention(q, q, q).sum().backward()


def _fourier() -> None:
    torch.fft.rfft2(_random(torch.float32, 8, 256, 256))


def _solver() -> None:
    x = _random(torch.float32, 256, 256)
    torch.linalg.cholesky(x @ x.mT + 256 * torch.eye(256, device="cuda"))
    torch.linalg.qr(x)
    torch.linalg.eigh(x + x.mT)


def _sparse() -> None:
    torch.eye(SIZE, device="cuda").to_sparse_csr() @ _kept[0]


def _streams() -> None:
    for _ in range(8):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            _kept[0].add_(1.0)
        stream.synchronize()
        _kept.append(stream)


def _graph() -> None:
    x = torch.ones(SIZE, SIZE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1).relu()
    graph.replay()
    _kept.extend([graph, x, y])


def _triton() -> None:
    from gpu.workloads.triton_kernel import add_one

    add_one(torch.zeros(1 << 16, device="cuda"))


def _compiled() -> None:
    torch.compile(lambda x: (x.sin() * 2 + x).sum(0))(_kept[0])


def _nccl() -> None:
    from torch import distributed

    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    device = torch.device("cuda", 0)
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1, device_id=device)
    distributed.all_reduce(torch.ones(1 << 20, device=device))


_SLOW = (_compiled, _nccl)
_STEPS: dict[str, Callable[[], Any]] = {
    "context": _context,
    "first tensor": _first_tensor,
    "first kernel": _first_kernel,
    "several kernels": _several_kernels,
    "cuBLAS, fp32": partial(_matrix_product, torch.float32),
    "cuBLAS, bf16": partial(_matrix_product, torch.bfloat16),
    "cuBLASLt, bf16": _linear_layer,
    "cuDNN convolution, fp32": partial(_convolution, torch.float32),
    "cuDNN convolution, bf16": partial(_convolution, torch.bfloat16),
    "cuDNN LSTM": _recurrent,
    "flash attention": partial(_attention, SDPBackend.FLASH_ATTENTION),
    "efficient attention": partial(_attention, SDPBackend.EFFICIENT_ATTENTION),
    "cuDNN attention": partial(_attention, SDPBackend.CUDNN_ATTENTION),
    "sort": _sort,
    "cuFFT": _fourier,
    "cuSOLVER": _solver,
    "cuSPARSE": _sparse,
    "eight streams": _streams,
    "CUDA graph": _graph,
    "Triton kernel": _triton,
    "empty_cache": torch.cuda.empty_cache,
    "compiled kernel": _compiled,
    "NCCL": _nccl,
}
