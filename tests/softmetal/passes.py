"""Passes: the commands of one encoder, which the queue's thread executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .counters import take
from .hazards import CurrentPass


class PassRecord:
    """The commands of one encoder."""

    def __init__(self, kind: str, *, concurrent: bool = False) -> None:
        self.kind = kind
        self.label: str | None = None  # of the encoder at its end
        self.concurrent = concurrent
        self.operations: list[Callable[[Any], None]] = []
        self.fences_updated: set[int] = set()
        self.samples: list[Any] = []  # of counters, see counters.py

    def __call__(self, engine: Any) -> None:
        current = CurrentPass(engine, self)
        take(self.samples, 0)
        for operation in self.operations:
            current.next_command()
            operation(current)
        current.end()
        take(self.samples, 1)
