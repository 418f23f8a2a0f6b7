"""Ids of the memory pools of a device, in PyTorch's form."""

from __future__ import annotations

__all__ = ["DEFAULT_POOL", "PoolId"]

PoolId = tuple[int, int]  # (0, n) of a user's MemPool, (n, 0) of a graph
DEFAULT_POOL: PoolId = (0, 0)
