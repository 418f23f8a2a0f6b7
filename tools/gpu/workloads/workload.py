"""A workload, and the list of all workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["WORKLOADS", "Setting", "Step", "Workload", "workload"]

Step = Callable[[], Any]  # one step; returns a tensor without gradient of one element: the loss, or a sum of results


@dataclass(frozen=True)
class Setting:
    """The device of a workload, and its size."""

    device: str  # "cuda" or "cpu"
    full: bool = True  # or a rehearsal: the same program with less data, for two cores

    def batch(self, count: int) -> int:
        """Return the number of samples in a batch."""
        return count if self.full else max(2, count // 8)

    def length(self, count: int) -> int:
        """Return the length of a sequence, or the side of an image."""
        return count if self.full else count // 4

    def layers(self, count: int) -> int:
        """Return the number of equal layers."""
        return count if self.full else min(count, 2)


@dataclass(frozen=True)
class Workload:
    """A program that prepares something and then does equal steps."""

    name: str  # also of files: lower case letters, digits and underscores
    prepare: Callable[[Setting], Step]
    packages: tuple[str, ...] = ()  # modules that it needs beside PyTorch
    steps: int = 3
    needs_gpu: str = ""  # why it cannot run on PyTorch's CPU device
    reads_values: str = ""  # why it cannot be predicted without values
    seconds: float = 30.0  # limit on a GPU, where it should take two


WORKLOADS: dict[str, Workload] = {}


def workload(name: str, **options: Any) -> Callable[[Callable[[Setting], Step]], Callable[[Setting], Step]]:
    """Return a decorator that adds a workload to the list. Raises ValueError if there is one of that name."""

    def decorate(prepare: Callable[[Setting], Step]) -> Callable[[Setting], Step]:
        if name in WORKLOADS:
            raise ValueError(f"there are two workloads {name!r}")
        WORKLOADS[name] = Workload(name, prepare, **options)
        return prepare

    return decorate
