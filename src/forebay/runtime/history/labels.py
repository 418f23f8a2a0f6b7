"""Labels of history entries: the compile context and the metadata of the thread that made the entry."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

__all__ = ["Labels", "thread_state"]


class _ThreadState(threading.local):
    metadata = ""
    contexts: tuple[str, ...] = ()


thread_state: _ThreadState = _ThreadState()


class Labels:
    """Labels of one recording: pairs of compile context and metadata by number, and the list of span annotations."""

    def __init__(
        self, *, contexts: bool = False, annotations: bool = False, most: int = 0, thread: int | None = None
    ) -> None:
        self.starts = 0  # how often the recording was started or changed
        self._table: list[tuple[str, str]] = [("", "")]
        self._numbers = {("", ""): 0}
        self.annotations: deque[dict[str, Any]] | None = None
        self.record(contexts=contexts, annotations=annotations, most=most, thread=thread)

    def record(self, *, contexts: bool, annotations: bool, most: int, thread: int | None = None) -> None:
        """Record the contexts and annotations from now on, or not. Earlier annotations are discarded.

        Without `annotations`, those of PyTorch's `record_function` in a thread are recorded, as PyTorch does.
        """
        self._contexts = contexts
        self._all_annotations, self._thread = annotations, thread
        self.annotations = deque(maxlen=most) if most and (annotations or thread is not None) else None

    def wants(self, *, function: bool) -> bool:
        """Return True if an annotation of this thread is recorded; `function`: one of PyTorch's `record_function`."""
        return self._all_annotations or (function and self._thread == threading.get_ident())

    def current_number(self) -> int:
        """Return the number of this thread's current label, adding it to the table if it is new."""
        context = thread_state.contexts[-1] if self._contexts and thread_state.contexts else ""
        label = (context, thread_state.metadata)
        if (known := self._numbers.get(label)) is not None:
            return known
        end = len(self._table)
        self._table.append(label)  # at index `end`, or later if another thread appends at the same time
        return self._numbers.setdefault(label, self._table.index(label, end))

    def table(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._table[1:])
