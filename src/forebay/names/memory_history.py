"""Memory history and snapshots of all devices of one kind, under PyTorch's names."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from threading import get_ident
from typing import Any

import numpy as np

from forebay._base.device_spec import DeviceLike
from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind
from forebay.names.memory_blocks import recorded_segments
from forebay.names.memory_statistics import require_native_allocator
from forebay.names.pybind_arguments import BOOL, INT64, SIZE, STR, STR_OR_NONE, STRINGS, Signature
from forebay.runtime.allocator import pluggable_allocator
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base.pool_ids import DEFAULT_POOL
from forebay.runtime.devices import open_device
from forebay.runtime.history import annotations as history_annotations
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.history.recorded_pool import RecordedPool
from forebay.runtime.history.recording import UNLIMITED
from forebay.runtime.pinned import history as pinned_history
from forebay.runtime.pinned.history import PinnedHistory
from forebay.runtime.settings import process_settings
from forebay.runtime.tensors.tensor import Tensor
from forebay.snapshot.report import flamegraph

__all__ = ["MemoryHistory"]

_PICKLE_PROTOCOL = 4  # the newest that all PyTorch readers support
_RECORD = (STR_OR_NONE, STR_OR_NONE, STR, SIZE, BOOL, BOOL, BOOL, STRINGS, BOOL, BOOL)
_RECORD_LEGACY = (BOOL, BOOL, INT64, *(BOOL,) * 5, STRINGS, BOOL, BOOL)


class MemoryHistory:
    """Memory history functions of one kind; they apply to all its devices, also to those opened later."""

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind

    def record(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = UNLIMITED,
        device: DeviceLike | None = None,  # noqa: ARG002 -- PyTorch takes it and records all devices
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] | None = None,
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Start, change or stop recording of the memory history on all devices.

        Does not initialise the kind: devices that are not open record from their first use.

        Parameters
        ----------
        enabled : {"all", "state", None}, default "all"
            "all" keeps `max_entries` entries, "state" the newest one, None stops the recording.
        context : {"all", "alloc", "state", None}, default "all"
            Stacks to record: of live blocks ("state"), also of allocation entries ("alloc"), also of free entries
            ("all"), or none (None).
        stacks : {"all", "python"}, default "all"
            Stacks consist of Python frames. "all" includes those of forebay, "python" begins with the program's.
        max_entries : int, optional
            Number of entries per device; unlimited by default.
        device : object, optional
            Ignored.
        clear_history : bool, default False
            Discard the entries recorded so far.
        compile_context : bool, default False
            Record the compile context of each entry.
        global_record_annotations : bool, default False
            Record annotations. By default, those of PyTorch's `record_function` in this thread alone.
        skip_actions : collection of str, optional
            Actions that are not recorded.
        record_pinned_host_memory : bool, default False
            Record pinned host memory too.
        record_cuda : bool, default True
            Record device memory.

        Raises
        ------
        TypeError
            If an argument has the wrong type, or `max_entries` is negative.
        ForebayError
            If an option or action is unknown, or there is no device.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        arguments = (clear_history, compile_context, global_record_annotations, _list(skip_actions))
        signature = Signature(f"_{self._kind.name}_record_memory_history", *_RECORD)
        options = signature.convert(
            enabled, context, stacks, max_entries, *arguments, record_pinned_host_memory, record_cuda
        )
        self.start(*options)

    def start(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Start, change or stop recording as `record` does, with arguments of the right types."""
        recording.check(enabled, context, stacks, max_entries)
        if record_pinned_host_memory and enabled is None:
            raise ForebayError("record_pinned_host_memory requires memory history recording to be enabled")
        self._kind.initialisation.prepare()
        recording.check_actions(skip_actions)
        require_native_allocator(self._kind, "recordHistory")

        thread = get_ident()

        def begin(pool: RecordedPool) -> None:
            recording.start(
                pool,
                enabled,
                context,
                stacks,
                max_entries,
                clear_history=clear_history,
                compile_context=compile_context,
                global_record_annotations=global_record_annotations,
                skip_actions=skip_actions,
                thread=thread,
            )

        def begin_pinned(history: PinnedHistory) -> None:
            mode = enabled if record_pinned_host_memory else None
            history.start(mode, context, max_entries, clear_history=clear_history, stacks=stacks)

        unchanged = recording.get_default(self._kind.name)
        recording.set_default(self._kind.name, unchanged if not record_cuda else begin if enabled else None)
        pinned_history.set_default(self._kind.name, begin_pinned if record_pinned_host_memory else None)
        for opened in open_device.open_devices(self._kind.name).devices if record_cuda else ():
            begin(opened.allocator)
        if (pinned := open_device.get_pinned_allocator(self._kind.name)) is not None:
            begin_pinned(pinned.history)

    def record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        device: DeviceLike | None = None,  # noqa: ARG002 -- as above
        record_context_cpp: bool = False,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] | None = None,
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Start or stop recording with the arguments of PyTorch before 2.1.

        Parameters
        ----------
        enabled : bool
            True starts or changes the recording, False stops it.
        record_context : bool, default True
            Record the stacks of live blocks.
        trace_alloc_max_entries : int, default 1
            Number of entries per device.
        trace_alloc_record_context : bool, default False
            Record the stacks of allocation entries too.
        device : object, optional
            Ignored.
        record_context_cpp : bool, default False
            Include the frames of forebay.
        clear_history : bool, default False
            As `record`.
        compile_context : bool, default False
            As `record`.
        global_record_annotations : bool, default False
            As `record`.
        skip_actions : collection of str, optional
            As `record`.
        record_pinned_host_memory : bool, default False
            As `record`.
        record_cuda : bool, default True
            As `record`.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ForebayError
            If an action is unknown, or there is no device.
        """
        signature = Signature(f"_{self._kind.name}_record_memory_history_legacy", *_RECORD_LEGACY)
        context_options = (record_context, trace_alloc_max_entries, trace_alloc_record_context, record_context_cpp)
        arguments = (clear_history, compile_context, global_record_annotations, _list(skip_actions))
        on, live, most, entries, cpp, *options = signature.convert(
            enabled, *context_options, *arguments, record_pinned_host_memory, record_cuda
        )
        context = "alloc" if entries else "state" if live else None
        stacks = "all" if cpp else "python"
        self.start("all" if on else None, context, stacks, most if most >= 0 else UNLIMITED, *options)

    def snapshot(self, device: DeviceLike | None = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:  # noqa: ARG002 -- PyTorch's; all devices
        """Return a snapshot of the memory of all devices in PyTorch's schema.

        The schema is that of PyTorch 2.15.

        Parameters
        ----------
        device : object, optional
            Ignored.
        augment_with_fx_traces : bool, default False
            Ignored.

        Returns
        -------
        dict
            Segments with their blocks, history and settings, as dicts and lists; empty before the kind's first use.

        Raises
        ------
        Unsupported
            If the kind uses a pluggable allocator.
        """
        require_native_allocator(self._kind, "snapshot")
        name, settings = self._kind.name, process_settings.current(common_first=True)
        allocators = [opened.allocator for opened in open_device.open_devices(name).devices]
        pinned = open_device.get_pinned_allocator(name)
        found = torch_schema.snapshot_allocators(allocators, settings, {} if pinned is None else pinned.snapshot())
        count = self._kind.count() if self._kind.initialisation.prepared else 0
        found["device_traces"] += [[] for _ in range(count - len(found["device_traces"]))]
        return found

    def memory_snapshot(
        self, mempool_id: tuple[int, int] | None = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        """Return the segments of all devices, or of one private pool.

        Parameters
        ----------
        mempool_id : tuple of int, optional
            The pool's id; all pools by default, and for (0, 0).
        include_traces : bool, default True
            Without effect: segments have no entries.

        Returns
        -------
        list of dict
            One dict per segment, with its blocks; empty before the kind's first use.

        Raises
        ------
        ForebayError
            If `mempool_id` does not consist of ints, or `include_traces` is not a bool.
        ValueError
            If a number does not fit in 64 bits.
        Unsupported
            If the kind uses a pluggable allocator.
        """
        pool = None if mempool_id is None else (mempool_id[0], mempool_id[1])
        if any(isinstance(part, bool) or not isinstance(part, (int, np.integer)) for part in pool or ()):
            raise ForebayError("mempool_id elements must be integers")
        if not isinstance(include_traces, bool):
            raise ForebayError("include_traces must be a boolean")
        if any(not -(1 << 63) <= part < 1 << 63 for part in pool or ()):
            raise ValueError("Overflow when unpacking long long")
        if pool == DEFAULT_POOL:
            pool = None
        require_native_allocator(self._kind, "snapshot")
        process_settings.current(common_first=True)  # PyTorch's snapshot has them, so it raises if they are invalid
        if not self._kind.initialised:
            return []
        return recorded_segments(self._kind, pool)

    def dump(self, filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
        """Write the snapshot to a pickle file for `forebay replay` and PyTorch's viewers.

        Parameters
        ----------
        filename : str, default "dump_snapshot.pickle"
            The file to write.
        augment_with_fx_traces : bool, default False
            Ignored.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        found = self.snapshot(augment_with_fx_traces=augment_with_fx_traces)
        with open(filename, "wb") as file:  # noqa: PTH123 -- it may be a file descriptor
            pickle.dump(found, file, _PICKLE_PROTOCOL)

    def save_segment_usage(self, filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
        """Write a flame graph of allocated memory by segment and stack.

        Parameters
        ----------
        filename : str, default "output.svg"
            The SVG file to write.
        snapshot : dict, optional
            The snapshot to draw; the current state by default.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        self._draw(filename, flamegraph.fold_segments, snapshot)

    def save_memory_usage(self, filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
        """Write a flame graph of allocated memory by stream and stack.

        Parameters
        ----------
        filename : str, default "output.svg"
            The SVG file to write.
        snapshot : dict, optional
            The snapshot to draw; the current state by default.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        self._draw(filename, flamegraph.fold_streams, snapshot)

    def _draw(self, filename: str, fold: Callable[[Any], str], snapshot: dict[str, Any] | None) -> None:
        taken = self.snapshot() if snapshot is None else snapshot
        with open(filename, "w", encoding="utf-8") as file:  # noqa: PTH123 -- as above
            file.write(flamegraph.draw(fold(taken)))

    # Stacks of single blocks, and annotations

    def allocation_traceback(self, data_ptr: int) -> list[dict[str, Any]] | None:
        """Return the stack that allocated the block at an address.

        Parameters
        ----------
        data_ptr : int
            Address of the block's first byte.

        Returns
        -------
        list of dict or None
            Frames, innermost first; None if there is no such block or its stack was not recorded.

        Raises
        ------
        TypeError
            If `data_ptr` is not an int.
        OverflowError
            If it does not fit in 64 bits.
        """
        if not isinstance(data_ptr, int):
            raise TypeError("an integer is required")
        if not -(1 << 63) <= data_ptr < 1 << 64:
            kind = "unsigned long" if data_ptr > 0 else "long"
            raise OverflowError(f"Python int too large to convert to C {kind}")
        for opened in open_device.open_devices(self._kind.name).devices:
            if (found := torch_schema.allocation_frames(opened.allocator, data_ptr)) is not None:
                return found
        return None

    def metadata_supported(self) -> bool:
        """Return True if history entries carry metadata: not if the kind uses a pluggable allocator."""
        return pluggable_allocator.current(self._kind.name) is None

    def set_metadata(self, metadata: str | dict[str, Any]) -> None:
        """Set the metadata of this thread's future history entries.

        Parameters
        ----------
        metadata : str or dict
            A dict is stored as compact JSON.

        Raises
        ------
        TypeError
            If `metadata` is neither.
        """
        if not isinstance(metadata, dict):
            [metadata] = Signature(f"_{self._kind.name}_setMemoryMetadata", STR).convert(metadata)
        history_annotations.set_metadata(metadata)

    def annotate(self, tensor: Tensor, metadata: str) -> None:
        """Add a history entry that annotates a tensor's memory.

        Parameters
        ----------
        tensor : Tensor
            A tensor of this kind.
        metadata : str
            The annotation.

        Raises
        ------
        ValueError
            If the tensor is of another kind.
        TypeError
            If `metadata` is not a str.
        ForebayError
            If the tensor's memory was not allocated by the caching allocator.
        """
        if not getattr(tensor, f"is_{self._kind.name}"):
            raise ValueError(f"expected a {self._kind.display_name} tensor, got device {tensor.device}")
        block, address = tensor.raw_storage.block, tensor.raw_storage.address
        _, metadata = Signature(f"_{self._kind.name}_annotateMemory", SIZE, STR).convert(address, metadata)
        if pluggable_allocator.current(self._kind.name) is not None:
            return
        if block is None or isinstance(block, UncachedBlock):
            pointer = f"{address:#x}" if address else "0"
            raise ForebayError(f"annotateMemory: no live allocation found at pointer {pointer}")
        with history_annotations.temporary_metadata(metadata):
            block.pool.record_annotation(block)


def _list(skip_actions: Collection[str] | None) -> Collection[str]:
    return [] if skip_actions is None else skip_actions
