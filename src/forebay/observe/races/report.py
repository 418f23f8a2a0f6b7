"""What is said of a race between streams. (`torch.cuda._sanitizer`)"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import StackSummary

__all__ = ["Access", "AccessType", "CUDASanitizerErrors", "SynchronizationError", "UnsynchronizedAccessError"]


class AccessType(enum.Enum):
    READ = enum.auto()
    WRITE = enum.auto()

    def __str__(self) -> str:
        return "reading from" if self is AccessType.READ else "writing to"


@dataclass
class Access:
    """One use of a tensor by one operation; `stream` is a handle, `operator` a name, `aliases` those of arguments."""

    type: AccessType
    seq_num: int
    stream: int
    operator: str
    aliases: list[str]
    is_output: bool
    stack_trace: StackSummary


class SynchronizationError(Exception):
    """Something that is not in order between streams."""


class UnsynchronizedAccessError(SynchronizationError):
    """Two uses of the same memory, one of them writing, that nothing orders.

    `freed_between`: the memory was freed after the first and used again; `record_stream` would have kept it.
    """

    def __init__(
        self,
        data_ptr: int,
        allocation_stack_trace: StackSummary | None,
        current_access: Access,
        previous_access: Access,
        *,
        freed_between: bool = False,
    ) -> None:
        super().__init__()
        self.data_ptr = data_ptr
        self.allocation_stack_trace = allocation_stack_trace
        self.current_access = current_access
        self.previous_access = previous_access
        self.freed_between = freed_between

    def __str__(self) -> str:
        current, previous, made = self.current_access, self.previous_access, self.allocation_stack_trace
        lines = [
            "============================",
            f"CSAN detected a possible data race on tensor with data pointer {self.data_ptr}",
            f"Access by stream {current.stream} during kernel:",
            _told(current),
            f"Previous access by stream {previous.stream} during kernel:",
            _told(previous),
            f"Tensor was allocated with stack trace:\n{''.join(made.format())}"
            if made
            else "Trace for tensor allocation not found.",
        ]
        if self.freed_between:
            lines.append("The memory was freed between the two. Call record_stream() before it is.")
        return "\n".join(lines)


def _told(access: Access) -> str:
    places = [f"argument(s) {', '.join(access.aliases)}"] if access.aliases else []
    places += ["the output"] if access.is_output else []
    trace = "".join(access.stack_trace.format())
    return f"{access.operator}\n{access.type} {', and to '.join(places)}\nWith stack trace:\n{trace}"


class CUDASanitizerErrors(Exception):
    """All races of one operation."""

    def __init__(self, errors: Sequence[SynchronizationError]) -> None:
        super().__init__()
        self.errors = errors

    def __str__(self) -> str:
        return f"detected {len(self.errors)} errors"
