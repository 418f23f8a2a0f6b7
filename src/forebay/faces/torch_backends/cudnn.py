"""`torch.backends.cudnn`: settings of a library that is not there. Programs may set them."""

from __future__ import annotations

__all__ = ["allow_tf32", "benchmark", "benchmark_limit", "deterministic", "enabled", "is_available", "version"]

enabled = True
benchmark = False
benchmark_limit = 10
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """Return False: there is no cuDNN."""
    return False


def version() -> int | None:
    """Return None: there is no cuDNN."""
    return None
