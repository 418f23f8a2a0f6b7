"""State that Inductor's cudagraph trees keep in `torch._C`: a flag of cuDNN, objects of a thread, cached tensors.

Forebay only remembers it: it has neither cuDNN nor gradients, which would use it.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

from forebay.errors import ForebayError
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["CachedTensors", "ConvolutionFlag", "ThreadObjects"]


class ConvolutionFlag:
    """True if cuDNN empties the cache while it looks for the fastest convolution."""

    def __init__(self) -> None:
        self._empties_cache = True

    def get(self) -> bool:
        return self._empties_cache

    def set(self, empties_cache: bool) -> None:
        self._empties_cache = bool(empties_cache)


class ThreadObjects(threading.local):
    """Objects of the calling thread by name."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def stash(self, key: str, value: Any) -> None:
        self._objects[key] = value

    def has(self, key: str) -> bool:
        return key in self._objects

    def get(self, key: str) -> Any:
        if key not in self._objects:
            raise ForebayError(f"this thread has no object {key!r}")
        return self._objects[key]

    def remove(self, key: str) -> None:
        self._objects.pop(key, None)


class CachedTensors:
    """Tensors with one more reference than the program knows of. Disabled at first; disabling removes all."""

    def __init__(self) -> None:
        self._enabled = False
        self._tensors: WeakSet[Tensor] = WeakSet()

    def enable(self, enabled: bool) -> None:
        self._enabled = enabled
        if not enabled:
            self._tensors.clear()

    def add(self, t: Tensor) -> None:
        if not isinstance(t, Tensor):
            raise TypeError(f"expected a tensor, not {type(t).__name__}")
        if not self._enabled:
            raise ForebayError("cached tensors are disabled: call _set_cached_tensors_enabled(True) first")
        self._tensors.add(t)

    def remove(self, t: Tensor) -> None:
        self._tensors.discard(t)

    def has(self, t: Tensor) -> bool:
        return t in self._tensors
