"""Roles of memory by the function that allocates it: buffers of data parallelism, caches, checkpoints."""

from __future__ import annotations

import re

__all__ = ["role_of"]

# Functions by the end of their file and their name, "" for any. Memory that no Python object shows as a tensor, such as
# the buckets of a reducer, or not at the time of a peak, such as parameters that are gathered for one layer, can be
# told by nothing else. The first row that fits counts.
_ROLES = (
    ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", r"foreach_reduce.*|chunk_cat", "gradient buckets"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "", "gathered parameters"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", r"_init_sharded_param|reset_sharded_param", "parameters"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", r".*grad.*", "gradients"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", r".*(gather|unsharded).*", "gathered parameters"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", r"post_backward", "gradient buckets"),
    ("torch/distributed/fsdp/_flat_param.py", r".*(unshard|all_gather|low_precision).*", "gathered parameters"),
    ("torch/distributed/fsdp/_flat_param.py", r"flatten_tensors.*|_get_shard|shard", "parameters"),
    ("torch/distributed/fsdp/_runtime_utils.py", r"_get_reduce_scatter_tensors|_reduce_grad.*", "gradient buckets"),
    ("torch/distributed/fsdp/_runtime_utils.py", r".*grad.*", "gradients"),
    ("torch/nn/parallel/distributed.py", r"_ddp_init_helper|_pre_forward", "gradient buckets"),
    ("torch/distributed/tensor/_api.py", r"distribute_tensor", "parameters"),
    ("torch/nn/modules/module.py", r"_apply", "parameters"),
    ("torch/optim/swa_utils.py", r"__init__", "copies of parameters"),
    ("torch/serialization.py", "", "loaded checkpoints"),
    ("torch/_weights_only_unpickler.py", "", "loaded checkpoints"),
    ("torch/distributed/checkpoint/", "", "loaded checkpoints"),
    ("safetensors/torch.py", r"load.*", "loaded checkpoints"),
    ("interop/torch/extensions/safetensors_files.py", "", "loaded checkpoints"),
    ("transformers/cache_utils.py", "", "caches"),
    ("diffusers/training_utils.py", r"__init__|step", "copies of parameters"),
    ("torch/utils/data/_utils/", "", "inputs"),
)  # fmt: skip
_PATTERNS = [(file, re.compile(name or ".*"), role) for file, name, role in _ROLES]


def role_of(file: str, function: str) -> str:
    """Return what a function of PyTorch or of another package allocates memory for; "" if that is not known."""
    for part, name, role in _PATTERNS:
        if part in file and name.fullmatch(function):
            return role
    return ""
