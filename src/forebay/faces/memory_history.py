"""Recording a kind's history, and snapshots of all its devices: PyTorch's names."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.faces.kind import Kind
from forebay.faces.memory_statistics import refuse_plugged
from forebay.runtime.allocator import pluggable_allocator
from forebay.runtime.allocator.caching_allocator import Allocator
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.devices import open_device
from forebay.runtime.history import annotations as history_annotations
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.history.recording import UNLIMITED
from forebay.runtime.pinned.history import PinnedHistory
from forebay.runtime.tensors.tensor import Tensor
from forebay.snapshot.report import flamegraph

__all__ = ["MemoryHistory"]

_PROTOCOL = 4  # PyTorch's readers, and older ones, read it


class MemoryHistory:
    """Of one kind: of all its devices, those that are opened later, too."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def record(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = UNLIMITED,
        device: Any = None,  # noqa: ARG002 -- PyTorch takes it and records all devices
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] | None = None,
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Begin, change or (`enabled` None) end the recording of allocations and frees, on all devices.

        "state" keeps the newest entry, "all" as many as `max_entries`. `context` says which stacks are taken: of
        what is allocated now ("state"), of entries too ("alloc"), of frees as well ("all"), or none at all (None).
        `skip_actions` are not recorded. `record_pinned_host_memory` is for pinned host memory, and without
        `record_cuda` for that alone. RuntimeError for unknown words; then initialises the kind.
        """
        recording.check(enabled, context, stacks, max_entries)
        recording.check_actions(skip_actions or ())
        if record_pinned_host_memory and enabled is None:
            raise ForebayError("record_pinned_host_memory requires memory history recording to be enabled")
        self._kind.initialisation.ensure()
        refuse_plugged(self._kind, "recordHistory")

        def begin(allocator: Allocator) -> None:
            recording.start(
                allocator,
                enabled,
                context,
                stacks,
                max_entries,
                clear_history=clear_history,
                compile_context=compile_context,
                global_record_annotations=global_record_annotations,
                skip_actions=skip_actions or (),
            )

        def begin_pinned(history: PinnedHistory) -> None:
            wanted = enabled if record_pinned_host_memory else None
            history.start(wanted, context, max_entries, clear_history=clear_history)

        kept = recording.kept_for(self._kind.name)
        recording.keep_for(
            self._kind.name,
            kept if not record_cuda else begin if enabled else None,
            begin_pinned if record_pinned_host_memory else None,
        )
        for opened in open_device.opened_of(self._kind.name).devices if record_cuda else ():
            begin(opened.allocator)
        if (pinned := open_device.pinned_if(self._kind.name)) is not None:
            begin_pinned(pinned.history)

    def record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        device: Any = None,
        record_context_cpp: bool = False,  # noqa: ARG002 -- there is no C++ to show
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] | None = None,
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """The same in the words of before 2.1: on or off, stacks of blocks, how many entries, and their stacks."""
        self.record(
            "all" if enabled else None,
            "alloc" if trace_alloc_record_context else "state" if record_context else None,
            "python",
            trace_alloc_max_entries,
            device,
            clear_history,
            compile_context,
            global_record_annotations,
            skip_actions,
            record_pinned_host_memory,
            record_cuda,
        )

    def snapshot(self, device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:  # noqa: ARG002 -- PyTorch's; all devices
        """Segments, blocks, history and settings of all devices, as plain dicts and lists. (torch-semantics 3.12)

        Before the kind's first use there is none of them. `augment_with_fx_traces` has no torch.fx to ask.
        """
        refuse_plugged(self._kind, "snapshot")
        if not self._kind.initialised:
            return torch_schema.of_allocators([])
        allocators = [opened.allocator for opened in open_device.opened_of(self._kind.name).devices]
        found = torch_schema.of_allocators(allocators, open_device.pinned_if(self._kind.name))
        found["device_traces"] += [[] for _ in range(self._kind.count() - len(found["device_traces"]))]
        return found

    def memory_snapshot(self, mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:  # noqa: ARG002 -- PyTorch's; segments only
        """The segments of all devices, or those of one pool; none before the kind's first use."""
        pool = None if mempool_id is None else (mempool_id[0], mempool_id[1])
        refuse_plugged(self._kind, "snapshot")
        if not self._kind.initialised:
            return []
        opened = open_device.opened_of(self._kind.name).devices
        return [row for each in opened for row in torch_schema.of_pool(each.allocator, pool)]

    def dump(self, filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        """Write the snapshot for `forebay replay`, PyTorch's viewers, or any unpickler. OSError where it cannot."""
        found = self.snapshot(augment_with_fx_traces=augment_with_fx_traces)
        with Path(filename).open("wb") as file:
            pickle.dump(found, file, _PROTOCOL)

    def save_segment_usage(self, filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
        """Draw who allocated what, segment by segment, as a flame graph (SVG), of the snapshot or of now."""
        self._draw(filename, flamegraph.of_segments(self.snapshot() if snapshot is None else snapshot))

    def save_memory_usage(self, filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
        """Draw who allocated what, stream by stream, as a flame graph (SVG), of the snapshot or of now."""
        self._draw(filename, flamegraph.of_streams(self.snapshot() if snapshot is None else snapshot))

    def _draw(self, filename: str, folded: str) -> None:
        Path(filename).write_text(flamegraph.draw(folded), "utf-8")

    # One block, and what a program says of itself.

    def allocation_traceback(self, data_ptr: int) -> list[dict[str, Any]] | None:
        """Where the block at the address was allocated, innermost frame first; None where nobody recorded that."""
        if not isinstance(data_ptr, int):
            raise TypeError("an integer is required")
        for opened in open_device.opened_of(self._kind.name).devices:
            if (found := torch_schema.frames_of(opened.allocator, data_ptr)) is not None:
                return found
        return None

    def metadata_supported(self) -> bool:
        """Whether entries carry metadata: those of the native allocator do."""
        return pluggable_allocator.current(self._kind.name) is None

    def set_metadata(self, metadata: str | dict[str, Any]) -> None:
        """What this thread's entries carry from now on; a dict becomes compact JSON. TypeError for anything else."""
        if not isinstance(metadata, (str, dict)):
            raise TypeError(f"metadata is a str or a dict, not {type(metadata).__name__}")
        history_annotations.set_metadata(metadata)

    def annotate(self, tensor: Tensor, metadata: str) -> None:
        """Note in the history what the tensor's memory is.

        ValueError for a tensor of another kind, RuntimeError for one that has no block.
        """
        if tensor.device.kind != self._kind.name:
            raise ValueError(f"expected a {self._kind.word} tensor, got device {tensor.device}")
        if not isinstance(metadata, str):
            raise TypeError(f"metadata is a str, not {type(metadata).__name__}")
        if pluggable_allocator.current(self._kind.name) is not None:
            return
        block = tensor.storage.block
        if block is None or isinstance(block, UncachedBlock):
            raise ForebayError(f"annotateMemory: no live allocation found at pointer {tensor.storage.address:#x}")
        with history_annotations.metadata_for_now(metadata):
            block.pool.note_block(block)
