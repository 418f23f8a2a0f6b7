"""All kernels of emulated devices that differ from the generic one, by the name of the operator and its overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.interop.torch.attention_kernels import ATTENTION_COMPOSITES, ATTENTION_KERNELS
from forebay.interop.torch.collective_kernels import collective_kernels
from forebay.interop.torch.copy_kernels import COPY_KERNELS
from forebay.interop.torch.factory_kernels import FACTORY_KERNELS
from forebay.interop.torch.foreach_kernels import FOREACH_KERNELS
from forebay.interop.torch.indexing_kernels import INDEXING_KERNELS
from forebay.interop.torch.loss_kernels import LOSS_KERNELS
from forebay.interop.torch.matrix_kernels import MATRIX_KERNELS
from forebay.interop.torch.normalization_kernels import NORMALIZATION_KERNELS
from forebay.interop.torch.random_kernels import DROPOUT_KERNELS, RANDOM_KERNELS
from forebay.interop.torch.reduction_kernels import REDUCTION_KERNELS
from forebay.interop.torch.rnn_kernels import RNN_KERNELS
from forebay.interop.torch.scaling_kernels import SCALING_KERNELS
from forebay.interop.torch.sorting_kernels import SORTING_KERNELS
from forebay.interop.torch.transfer_kernels import TRANSFER_KERNELS

__all__ = ["COMPOSITES", "special_kernels"]

# Operators that consist of others, which have gradients.
COMPOSITES: dict[str, Callable[..., Any]] = {**ATTENTION_COMPOSITES}


def special_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels."""
    return {
        **ATTENTION_KERNELS,
        **COPY_KERNELS,
        **DROPOUT_KERNELS,
        **FACTORY_KERNELS,
        **FOREACH_KERNELS,
        **INDEXING_KERNELS,
        **LOSS_KERNELS,
        **MATRIX_KERNELS,
        **NORMALIZATION_KERNELS,
        **RANDOM_KERNELS,
        **REDUCTION_KERNELS,
        **RNN_KERNELS,
        **SCALING_KERNELS,
        **SORTING_KERNELS,
        **TRANSFER_KERNELS,
        **collective_kernels(),
    }
