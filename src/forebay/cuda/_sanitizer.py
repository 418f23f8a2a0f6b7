"""Detection of data races between CUDA streams when the work is queued (`torch.cuda._sanitizer`).

Enabled by `enable_cuda_sanitizer()`, or by the environment variable TORCH_CUDA_SANITIZER before `forebay.cuda` is
imported. `forebay.observe.races` implements the detection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from forebay.cuda._kind import CUDA
from forebay.observe.races.detector import Detector
from forebay.observe.races.report import (
    Access,
    AccessType,
    CUDASanitizerErrors,
    SynchronizationError,
    UnsynchronizedAccessError,
)
from forebay.observe.races.vector_clocks import DEFAULT_STREAM_ID, StreamSynchronizations
from forebay.runtime.base import observers

__all__ = [
    "DEFAULT_STREAM_ID",
    "Access",
    "AccessType",
    "CUDASanitizer",
    "CUDASanitizerErrors",
    "StreamSynchronizations",
    "SynchronizationError",
    "UnsynchronizedAccessError",
    "cuda_sanitizer",
    "enable_cuda_sanitizer",
    "zip_by_key",
]

_K = TypeVar("_K")
_A = TypeVar("_A")
_B = TypeVar("_B")


class CUDASanitizer:
    """Race detection between CUDA streams, off until `enable` is called.

    Notes
    -----
    As `torch.cuda._sanitizer.CUDASanitizer`.
    """

    def __init__(self) -> None:
        self._detector = Detector(CUDA.name)

    @property
    def enabled(self) -> bool:
        """True while the sanitizer is enabled; False in a forked child."""
        return self._detector in observers.registered  # a forked child has no observers

    def enable(self) -> None:
        """Start detecting races, with no knowledge of earlier work. Does nothing if already enabled."""
        if not self.enabled:
            self._detector = Detector(CUDA.name)
            observers.add(self._detector)

    def disable(self) -> None:
        """Stop detecting races. Does nothing if already disabled."""
        observers.remove(self._detector)


cuda_sanitizer = CUDASanitizer()


def enable_cuda_sanitizer() -> None:
    """Enable race detection for the process.

    Notes
    -----
    As `torch.cuda._sanitizer.enable_cuda_sanitizer`. A racing operation is queued; then its races are printed to
    stderr and CUDASanitizerErrors is raised.
    """
    cuda_sanitizer.enable()


def zip_by_key(a: Mapping[_K, _A], b: Mapping[_K, _B]) -> Iterator[tuple[_K, _A, _B]]:
    """Yield the keys that two mappings share, with both values.

    Parameters
    ----------
    a : mapping
        The mapping that determines the order.
    b : mapping
        The other mapping.

    Yields
    ------
    tuple
        The key, its value in `a` and its value in `b`.

    Notes
    -----
    As `torch.cuda._sanitizer.zip_by_key`.

    Examples
    --------
    >>> list(zip_by_key({1: "a", 2: "b"}, {2: "c"}))
    [(2, 'b', 'c')]
    """
    for key, value in a.items():
        if key in b:
            yield key, value, b[key]
