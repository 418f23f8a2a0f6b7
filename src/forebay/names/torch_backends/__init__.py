"""`torch.backends`: whether kinds of device and libraries are available, and settings of kernels, which are stored.

The modules are attributes of `forebay.backends`, which otherwise contains forebay's own backends.
"""

from __future__ import annotations

from forebay.names.torch_backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
