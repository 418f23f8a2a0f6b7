"""All workloads in the order in which they run: first those that show most, last those that are compiled."""

from __future__ import annotations

from gpu.workloads import (  # noqa: F401 -- they add their workloads to the list
    attention,
    compiled,
    graph_networks,
    images,
    language_models,
    optimizers,
    own_transformer,
    recurrent,
    unet,
)
from gpu.workloads.workload import WORKLOADS, Workload

__all__ = ["load"]

_ORDER = """
gpt2_bf16 resnet50_fp32 own_gpt_fp32 llama_lora diffusion_bf16 bert_fp16 llama_greedy lstm_fp32 vit_bf16 attention_flash
convnext_bf16 adamw_foreach graph_sage llama_bf16 unet_fp32 cnn_fp32 adamw_fused own_gpt_generate attention_efficient
own_gpt_checkpoints resnet50_fp16_channels_last attention_math attention_cudnn graph_index_add llama_generate
bert_inference cnn_tf32 sgd_momentum adam_for_loop own_gpt_accumulated resnet50_inference llama_checkpoints gpt2_fp32
own_gpt_bf16_clipped autoencoder_fp32 llama_accelerate diffusion_sampling gru_bf16 perceptron_tf32 embeddings_adagrad
cnn_bf16_inference cuda_graph compiled_perceptron compiled_own_gpt compiled_cnn_inference
"""
_QUICK = """
gpt2_bf16 own_gpt_fp32 diffusion_bf16 lstm_fp32 attention_flash graph_index_add adamw_fused own_gpt_generate
"""


def load(*, quick: bool = False) -> list[Workload]:
    """Return the workloads, or a few of them."""
    order = _ORDER.split()
    if {*order} != WORKLOADS.keys() or len(order) != len(WORKLOADS):
        raise ValueError(f"the order and the list of workloads differ in {sorted({*order} ^ WORKLOADS.keys())}")
    return [WORKLOADS[name] for name in (_QUICK.split() if quick else order)]
