"""The classes of `torch.storage`. Tensors create them: `Tensor.untyped_storage` and `Tensor.storage`."""

from __future__ import annotations

from forebay.runtime.tensors.typed_storage import TypedStorage
from forebay.runtime.tensors.untyped_storage import UntypedStorage

__all__ = ["TypedStorage", "UntypedStorage"]
