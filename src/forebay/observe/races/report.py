"""Errors that report races between streams (`torch.cuda._sanitizer`)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import StackSummary

__all__ = ["Access", "AccessType", "CUDASanitizerErrors", "SynchronizationError", "UnsynchronizedAccessError"]


class AccessType(enum.Enum):
    """Read or write."""

    READ = enum.auto()
    WRITE = enum.auto()

    def __str__(self) -> str:
        return "reading from" if self is AccessType.READ else "writing to"


@dataclass
class Access:
    """One access to a tensor by one operation.

    Parameters
    ----------
    type : AccessType
        Read or write.
    seq_num : int
        Number of the operation; later operations have larger numbers.
    stream : int
        Handle of the stream.
    operator : str
        Name of the operation.
    aliases : list of str
        Names of the arguments through which the operation accesses the tensor.
    is_output : bool
        True if the tensor is an output of the operation.
    stack_trace : traceback.StackSummary
        Python stack of the call, innermost frame last.
    """

    type: AccessType
    seq_num: int
    stream: int
    operator: str
    aliases: list[str]
    is_output: bool
    stack_trace: StackSummary


class SynchronizationError(Exception):
    """Base class of errors about missing synchronization between streams."""


class UnsynchronizedAccessError(SynchronizationError):
    """Two accesses to the same memory, at least one a write, without synchronization between them.

    Parameters
    ----------
    data_ptr : int
        Address of the tensor.
    allocation_stack_trace : traceback.StackSummary or None
        Python stack of the allocation, if known.
    current_access : Access
        The later access.
    previous_access : Access
        The earlier access.
    freed_between : bool, default False
        True if the memory was freed and reused after the earlier access; `record_stream` would have delayed the reuse.
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
        current, previous, allocation = self.current_access, self.previous_access, self.allocation_stack_trace
        lines = [
            "============================",
            f"CSAN detected a possible data race on tensor with data pointer {self.data_ptr}",
            f"Access by stream {current.stream} during kernel:",
            _describe(current),
            f"Previous access by stream {previous.stream} during kernel:",
            _describe(previous),
            f"Tensor was allocated with stack trace:\n{''.join(allocation.format())}"
            if allocation
            else "Trace for tensor allocation not found.",
        ]
        if self.freed_between:
            lines.append("The memory was freed between the two accesses. Call record_stream() before it is freed.")
        return "\n".join(lines)


def _describe(access: Access) -> str:
    places = [f"argument(s) {', '.join(access.aliases)}"] if access.aliases else []
    places += ["the output"] if access.is_output else []
    trace = "".join(access.stack_trace.format())
    return f"{access.operator}\n{access.type} {', and to '.join(places)}\nWith stack trace:\n{trace}"


class CUDASanitizerErrors(Exception):
    """All races of one operation.

    Parameters
    ----------
    errors : sequence of SynchronizationError
        The races.
    """

    def __init__(self, errors: Sequence[SynchronizationError]) -> None:
        super().__init__()
        self.errors = errors

    def __str__(self) -> str:
        return f"detected {len(self.errors)} errors"
