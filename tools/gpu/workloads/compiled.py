"""Programs that torch.compile or a CUDA graph runs. Compilation takes most of their time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpu.workloads.images import own_cnn, random_images
from gpu.workloads.optimizers import multilayer_perceptron
from gpu.workloads.own_transformer import language_model
from gpu.workloads.training import ADAMW_FUSED, Recipe
from gpu.workloads.workload import Setting, Step, workload

_COMPILED: dict[str, Any] = {
    "packages": ("triton",),
    "seconds": 60.0,
    "needs_gpu": "compilation for the CPU takes a minute",
}


@workload("compiled_perceptron", **_COMPILED)
def compiled_perceptron(setting: Setting) -> Step:
    return multilayer_perceptron(setting, Recipe(), compiled=True)


@workload("compiled_cnn_inference", **_COMPILED)
def compiled_cnn_inference(setting: Setting) -> Step:
    model = torch.compile(own_cnn().to(setting.device).eval())
    images = random_images(setting, 16)

    def step() -> Any:
        with torch.no_grad():
            return model(images).mean()

    return step


@workload("compiled_own_gpt", **_COMPILED)
def compiled_own_gpt(setting: Setting) -> Step:
    return language_model(setting, Recipe(ADAMW_FUSED, autocast="bf16"), compiled=True)


@workload("cuda_graph", needs_gpu="the CPU has no graphs")
def cuda_graph(setting: Setting) -> Step:
    """Capture an inference in a graph, after a warm-up on a side stream, and replay it."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to(setting.device, torch.bfloat16)
    x = torch.randn(setting.batch(512), 1024, device=setting.device, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(2):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x).relu()

    def step() -> Any:
        graph.replay()
        return y.float().mean()

    return step
