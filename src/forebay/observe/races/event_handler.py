"""Races found in a trace of numbers: launches, events, streams and allocations (`torch.cuda._sanitizer.EventHandler`).

For tools that have such a trace; `Detector` observes the runtime itself, and knows the bytes of each access.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from traceback import StackSummary
from typing import Any

from forebay.observe.races.report import Access, AccessType, SynchronizationError, UnsynchronizedAccessError
from forebay.observe.races.vector_clocks import LATE_START, UNKNOWN, StreamSynchronizations, logger

__all__ = ["EventHandler", "TensorInfo", "TensorsAccessed"]


@dataclass
class TensorInfo:
    """The accesses to one tensor that later ones are compared with."""

    allocation_stack_trace: StackSummary | None  # Python stack of the allocation, if known
    reads: list[Access] = field(default_factory=list)  # reads since the last write
    write: Access | None = None


class TensorsAccessed:
    """The tensors of a trace, by address."""

    def __init__(self) -> None:
        self.accesses: dict[int, TensorInfo] = {}

    def ensure_tensor_exists(self, data_ptr: int) -> None:
        if data_ptr not in self.accesses:
            logger.info(UNKNOWN, "tensor with pointer", data_ptr, "tensor allocation")
            self.create_tensor(data_ptr, None)

    def ensure_tensor_does_not_exist(self, data_ptr: int) -> None:
        if data_ptr in self.accesses:
            logger.info(
                "Found duplicate tensor allocation in the trace for tensor with pointer: %s. Assuming the trace for "
                "tensor deallocation wasn't caught and backfilling it now. %s",
                data_ptr,
                LATE_START,
            )
            self.delete_tensor(data_ptr)

    def create_tensor(self, data_ptr: int, stack_trace: StackSummary | None) -> None:
        self.accesses[data_ptr] = TensorInfo(stack_trace)

    def delete_tensor(self, data_ptr: int) -> None:
        del self.accesses[data_ptr]

    def were_there_reads_since_last_write(self, data_ptr: int) -> bool:
        return bool(self.get_reads(data_ptr))

    def get_allocation_stack_trace(self, data_ptr: int) -> StackSummary | None:
        return self.accesses[data_ptr].allocation_stack_trace

    def get_write(self, data_ptr: int) -> Access | None:
        return self.accesses[data_ptr].write

    def get_reads(self, data_ptr: int) -> list[Access]:
        return self.accesses[data_ptr].reads

    def add_read(self, data_ptr: int, access: Access) -> None:
        self.get_reads(data_ptr).append(access)

    def set_write(self, data_ptr: int, access: Access) -> None:
        info = self.accesses[data_ptr]
        info.write, info.reads = access, []


class EventHandler:
    """Race detection in a trace: each method reports one operation, `_handle_kernel_launch` returns its races.

    As `torch.cuda._sanitizer.EventHandler`.

    Examples
    --------
    >>> handler = EventHandler()
    >>> handler._handle_kernel_launch(1, {7}, set(), set(), "read", {7: ["self"]})
    []
    >>> len(handler._handle_kernel_launch(2, set(), {7}, set(), "write", {7: ["self"]}))
    1
    """

    def __init__(self) -> None:
        self.tensors_accessed: TensorsAccessed = TensorsAccessed()
        self.syncs: StreamSynchronizations[int, int] = StreamSynchronizations()
        self.seq_num: int = 0

    def _handle_kernel_launch(
        self,
        stream: int,
        read_only: Iterable[int],
        read_write: Iterable[int],
        outputs: Iterable[int],
        operator: Any,
        tensor_aliases: Mapping[int, list[str]],
    ) -> list[SynchronizationError]:
        tensors, written, stack, races = self.tensors_accessed, set(outputs), _stack(), list[SynchronizationError]()
        self.seq_num += 1
        self.syncs.update_seq_num(stream, self.seq_num)
        accesses = [(data_ptr, AccessType.READ) for data_ptr in read_only]
        accesses += [(data_ptr, AccessType.WRITE) for data_ptr in read_write]
        for data_ptr, type_ in accesses:
            tensors.ensure_tensor_exists(data_ptr)
            aliases = tensor_aliases[data_ptr]
            new = Access(type_, self.seq_num, stream, operator, aliases, data_ptr in written, stack)
            last = tensors.get_write(data_ptr)
            earlier = [] if last is None else [last]
            if type_ is AccessType.WRITE:
                earlier = tensors.get_reads(data_ptr) or earlier  # the reads were compared with the last write
            for old in earlier:
                if not self.syncs.is_ordered_after(stream, old.seq_num, old.stream):
                    allocation = tensors.get_allocation_stack_trace(data_ptr)
                    races.append(UnsynchronizedAccessError(data_ptr, allocation, new, old))
            (tensors.set_write if type_ is AccessType.WRITE else tensors.add_read)(data_ptr, new)
        return races

    def _handle_memory_allocation(self, data_ptr: int) -> None:
        self.tensors_accessed.ensure_tensor_does_not_exist(data_ptr)
        self.tensors_accessed.create_tensor(data_ptr, _stack())

    def _handle_memory_deallocation(self, data_ptr: int) -> None:
        self.tensors_accessed.ensure_tensor_exists(data_ptr)
        self.tensors_accessed.delete_tensor(data_ptr)

    def _handle_event_creation(self, event: int) -> None:
        self.syncs.create_event(event)

    def _handle_event_deletion(self, event: int) -> None:
        self.syncs.delete_event(event)

    def _handle_event_record(self, event: int, stream: int) -> None:
        self.syncs.record_state(event, stream)

    def _handle_event_wait(self, event: int, stream: int) -> None:
        self.syncs.stream_wait_for_event(stream, event)

    def _handle_event_synchronization(self, event: int) -> None:
        self.syncs.all_streams_wait_for_event(event)

    def _handle_stream_creation(self, stream: int) -> None:
        self.syncs.create_stream(stream)

    def _handle_stream_synchronization(self, stream: int) -> None:
        self.syncs.all_streams_wait_for_stream(stream)

    def _handle_device_synchronization(self) -> None:
        self.syncs.sync_all_streams()


def _stack() -> StackSummary:
    """Return the Python stack of the caller, the innermost frame last."""
    stack = StackSummary.extract(traceback.walk_stack(inspect.currentframe()), lookup_lines=False)
    stack.reverse()
    return stack
