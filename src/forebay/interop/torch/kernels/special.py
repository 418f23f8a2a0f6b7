"""All kernels of emulated devices that differ from the generic one, by the name of the operator and its overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.interop.torch.kernels.attention import ATTENTION_COMPOSITES, ATTENTION_KERNELS
from forebay.interop.torch.kernels.batch_normalization import BATCH_NORM_KERNELS
from forebay.interop.torch.kernels.bilinear import BILINEAR_KERNELS
from forebay.interop.torch.kernels.chunked_copies import CHUNK_KERNELS
from forebay.interop.torch.kernels.collectives import collective_kernels
from forebay.interop.torch.kernels.contiguous_copies import COPYING_KERNELS
from forebay.interop.torch.kernels.convolutions import CONVOLUTION_KERNELS
from forebay.interop.torch.kernels.copies import COPY_KERNELS
from forebay.interop.torch.kernels.cudnn_normalization import CUDNN_BATCH_NORM_COMPOSITES, CUDNN_BATCH_NORM_KERNELS
from forebay.interop.torch.kernels.decompositions import DECOMPOSITION_KERNELS
from forebay.interop.torch.kernels.determinants import DETERMINANT_KERNELS
from forebay.interop.torch.kernels.distances import DISTANCE_KERNELS
from forebay.interop.torch.kernels.elementwise import ELEMENTWISE_KERNELS
from forebay.interop.torch.kernels.embeddings import EMBEDDING_KERNELS
from forebay.interop.torch.kernels.factories import FACTORY_KERNELS
from forebay.interop.torch.kernels.foreach import FOREACH_KERNELS
from forebay.interop.torch.kernels.gradient_scaling import SCALING_KERNELS
from forebay.interop.torch.kernels.grouped_products import GROUPED_KERNELS
from forebay.interop.torch.kernels.indexing import INDEXING_KERNELS
from forebay.interop.torch.kernels.losses import LOSS_KERNELS
from forebay.interop.torch.kernels.matrices import MATRIX_KERNELS
from forebay.interop.torch.kernels.nested import NESTED_KERNELS
from forebay.interop.torch.kernels.normalization import NORMALIZATION_KERNELS
from forebay.interop.torch.kernels.packed_attention import PACKED_KERNELS
from forebay.interop.torch.kernels.random_draws import DROPOUT_KERNELS, RANDOM_KERNELS
from forebay.interop.torch.kernels.recurrent_cells import RNN_KERNELS
from forebay.interop.torch.kernels.reductions import REDUCTION_KERNELS
from forebay.interop.torch.kernels.segments import SEGMENT_KERNELS
from forebay.interop.torch.kernels.selection import SELECTION_KERNELS
from forebay.interop.torch.kernels.sorting import SORTING_KERNELS
from forebay.interop.torch.kernels.storage_sizes import SIZE_KERNELS
from forebay.interop.torch.kernels.synchronized_normalization import SYNCHRONIZED_KERNELS
from forebay.interop.torch.kernels.transfers import TRANSFER_KERNELS
from forebay.interop.torch.kernels.transforms import TRANSFORM_KERNELS

__all__ = ["COMPOSITES", "special_kernels"]

# Operators that consist of others, which have gradients.
COMPOSITES: dict[str, Callable[..., Any]] = {**ATTENTION_COMPOSITES, **CUDNN_BATCH_NORM_COMPOSITES}


def special_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels."""
    return {
        **ATTENTION_KERNELS,
        **BATCH_NORM_KERNELS,
        **BILINEAR_KERNELS,
        **CHUNK_KERNELS,
        **CONVOLUTION_KERNELS,
        **COPYING_KERNELS,
        **COPY_KERNELS,
        **CUDNN_BATCH_NORM_KERNELS,
        **DECOMPOSITION_KERNELS,
        **DETERMINANT_KERNELS,
        **DISTANCE_KERNELS,
        **DROPOUT_KERNELS,
        **ELEMENTWISE_KERNELS,
        **EMBEDDING_KERNELS,
        **FACTORY_KERNELS,
        **FOREACH_KERNELS,
        **GROUPED_KERNELS,
        **INDEXING_KERNELS,
        **LOSS_KERNELS,
        **MATRIX_KERNELS,
        **NESTED_KERNELS,
        **NORMALIZATION_KERNELS,
        **PACKED_KERNELS,
        **RANDOM_KERNELS,
        **REDUCTION_KERNELS,
        **RNN_KERNELS,
        **SCALING_KERNELS,
        **SEGMENT_KERNELS,
        **SELECTION_KERNELS,
        **SIZE_KERNELS,
        **SORTING_KERNELS,
        **SYNCHRONIZED_KERNELS,
        **TRANSFER_KERNELS,
        **TRANSFORM_KERNELS,
        **collective_kernels(),
    }
