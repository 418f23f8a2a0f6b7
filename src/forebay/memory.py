"""A device's memory: what is allocated, what is reserved, the history, snapshots. PyTorch's names where it has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay._core import Block
from forebay.byte_sizes import parse_bytes
from forebay.device_spec import Device
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.caching_allocator import Observer
from forebay.runtime.allocator.summary import memory_summary as summary_of
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import annotations as history_annotations
from forebay.runtime.history import memory_snapshot as history_memory_snapshot
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.history.annotations import annotate, compile_context, metadata, set_metadata
from forebay.runtime.memory.mem_pool import MemPool, use_mem_pool
from forebay.runtime.memory.peak import Peak
from forebay.runtime.settings import process_settings
from forebay.snapshot.model import Snapshot
from forebay.spi import PinnedHost

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "MemPool",
    "annotate",
    "annotate_tensor",
    "attach_out_of_memory_observer",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "compile_context",
    "empty_cache",
    "empty_host_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "metadata",
    "peak",
    "record_history",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_allocator_settings",
    "set_capacity",
    "set_metadata",
    "set_per_process_memory_fraction",
    "snapshot",
    "use_mem_pool",
]


def memory_allocated(device: Device | str | int | None = None) -> int:
    """Bytes in blocks handed out now, each rounded up as the allocator does. Opens the device."""
    return opened_for(device).allocator.current(statistics.ALLOCATED_BYTES)


def max_memory_allocated(device: Device | str | int | None = None) -> int:
    """The most `memory_allocated` has been since the start or `reset_peak_memory_stats`."""
    return opened_for(device).allocator.peak(statistics.ALLOCATED_BYTES)


def memory_reserved(device: Device | str | int | None = None) -> int:
    """Bytes in segments taken from the device now, handed out or not."""
    return opened_for(device).allocator.current(statistics.RESERVED_BYTES)


def max_memory_reserved(device: Device | str | int | None = None) -> int:
    """The most `memory_reserved` has been since the start or `reset_peak_memory_stats`."""
    return opened_for(device).allocator.peak(statistics.RESERVED_BYTES)


def memory_stats(device: Device | str | int | None = None) -> dict[str, int]:
    """Everything the allocator counts, as PyTorch's flat keys ("allocated_bytes.all.current").

    >>> import forebay
    >>> block = forebay.allocate(1000, "host:0")
    >>> forebay.memory.memory_stats("host:0")["requested_bytes.all.current"] >= 1000
    True
    """
    return statistics.flat(opened_for(device).allocator)


def memory_stats_as_nested_dict(device: Device | str | int | None = None) -> dict[str, Any]:
    """The same as dicts of dicts, `["allocated_bytes"]["all"]["current"]`. (`torch.cuda` has it under this name)"""
    return statistics.nested(memory_stats(device))


def memory_summary(device: Device | str | int | None = None, abbreviated: bool = False) -> str:
    """The numbers as a table for people (`torch.cuda.memory_summary`); abbreviated, without small and large pools."""
    opened = opened_for(device)
    numbers, (kind, index) = statistics.flat(opened.allocator), (opened.device.kind, opened.device.index or 0)
    return summary_of(numbers, index, kind=kind, abbreviated=abbreviated)


def reset_peak_memory_stats(device: Device | str | int | None = None) -> None:
    """Every peak becomes what is there now."""
    opened_for(device).allocator.reset_peaks()


def reset_accumulated_memory_stats(device: Device | str | int | None = None) -> None:
    """Everything counted since the start becomes 0: "allocated", "freed", retries, ooms."""
    opened_for(device).allocator.reset_accumulated()


def peak(device: Device | str | int | None = None) -> Peak:
    """Measure the most memory that a part of the program has on the device, all threads together. Opens it.

    `.allocated`, `.reserved`: the most bytes at once; `.allocated_above`, `.reserved_above`: above what there was. They
    nest, and neither they nor `reset_peak_memory_stats` disturb each other.

    >>> import forebay
    >>> with forebay.memory.peak("host:0") as p:
    ...     forebay.zeros(1 << 20, dtype="uint8", device="host:0").tolist()[:1]
    [0]
    >>> p.allocated_above
    1048576
    """
    return Peak(opened_for(device))


def empty_cache(device: Device | str | int | None = None) -> None:
    """Give back to the device all segments of which nothing is in use.

    Waits for all work on the device, which may still be at it there.
    """
    opened_for(device).allocator.empty()


def host_memory_stats(device: Device | str | int | None = None) -> dict[str, int]:
    """What is counted of pinned host memory, which the devices of a kind share, as PyTorch's flat keys.

    What is active is in use, or waits for a copy; what is allocated is that, and what is cached. Sizes are bytes as
    handed out, times µs. Raises Unsupported where the device lends none.

    >>> import forebay
    >>> array = forebay.empty_pinned(1000, dtype="uint8", device="host:0")
    >>> forebay.memory.host_memory_stats("host:0")["active_bytes.current"] >= 1024
    True
    """
    return opened_for(device).pinned.stats()


def host_memory_stats_as_nested_dict(device: Device | str | int | None = None) -> dict[str, Any]:
    """The same as a dict of dicts: `["active_bytes"]["current"]`."""
    return opened_for(device).pinned.stats_as_nested_dict()


def reset_peak_host_memory_stats(device: Device | str | int | None = None) -> None:
    """Every peak of pinned host memory becomes what is there now; the longest and shortest time become 0."""
    opened_for(device).pinned.reset_peaks()


def reset_accumulated_host_memory_stats(device: Device | str | int | None = None) -> None:
    """What was counted of pinned host memory since the start becomes 0: "allocated", "freed", calls and their time."""
    opened_for(device).pinned.reset_accumulated()


def empty_host_cache(device: Device | str | int | None = None) -> None:
    """Give back to the system all pinned host memory that is free. (`torch.accelerator.empty_host_cache`)

    Never waits: what a copy still uses stays in the cache.
    """
    opened_for(device).pinned.empty()


def mem_get_info(device: Device | str | int | None = None) -> tuple[int, int]:
    """Bytes free on the device, bytes in all; what others reserved there is not free."""
    return opened_for(device).port.memory_info()


def set_capacity(capacity: int | str, device: Device | str | int | None = None) -> None:
    """How many bytes the device has in all: an int, or a size like "16MiB". Opens the device.

    Raises Unsupported where the memory is what it is, WrongState below what is reserved now.
    """
    nbytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
    opened_for(device).set_capacity(nbytes)


def record_history(
    max_entries: int | None = 1_000_000,
    *,
    depth: int = 64,
    context: str | None = "alloc",
    keep: bool = False,
    skip_actions: Collection[str] = (),
    annotations: bool = False,
    compile_context: bool = False,
    pinned: bool = False,
    device: Device | str | int | None = None,
) -> None:
    """Record every allocation and free; None stops and forgets. (`torch.cuda.memory._record_memory_history`)

    The newest `max_entries` are kept (48 bytes each), those of an earlier recording too with `keep`. `context` says
    which Python stacks are taken: of what is allocated now ("state"), of entries too ("alloc"), of frees their own
    ("all"), or none; of each the innermost `depth` frames, at most 256. `skip_actions` are PyTorch's words ("alloc",
    "free_requested", …) for what is not recorded, `annotations` and `compile_context` ask for what `annotate` and
    `compile_context` say, `pinned` for pinned host memory, too. Opens the device. Raises ForebayError for unknown
    words.
    """
    if max_entries is not None and not isinstance(max_entries, int):
        raise TypeError(f"max_entries must be an int or None, not {type(max_entries).__name__}")
    if max_entries is not None and max_entries < 1:
        raise ValueError(f"max_entries is at least 1, or None to stop; got {max_entries}")
    if depth < 0:
        raise ValueError(f"depth is a number of frames, not {depth}")
    opened = opened_for(device)
    recording.start(
        opened.allocator,
        None if max_entries is None else "all",
        context,
        max_entries=max_entries or 0,
        clear_history=not keep,
        compile_context=compile_context,
        global_record_annotations=annotations,
        skip_actions=skip_actions,
        depth=depth,
    )
    if pinned or isinstance(opened.port, PinnedHost):  # it is on or off with every recording, as in PyTorch
        wanted = "all" if pinned and max_entries is not None else None
        opened.pinned.history.start(wanted, context, max_entries or 0, clear_history=not keep, depth=depth)


def snapshot(device: Device | str | int | None = None, *, notes: Mapping[str, Any] | None = None) -> Snapshot:
    """Segments, blocks, statistics and the recorded history of this moment. `notes` (JSON-able) go along.

    Some are there already, for `forebay replay`: the settings, and whether memory comes as segments, how fine ones, or
    as heaps.
    """
    opened = opened_for(device)
    _, total = opened.port.memory_info()
    allocator = opened.allocator
    return history_memory_snapshot.snapshot(
        allocator,
        str(opened.device),
        total,
        stats=statistics.flat(allocator),
        notes={**allocator.rules(), **(notes or {})},
        labels=allocator.labels.table,
    )


def memory_snapshot(device: Device | str | int | None = None) -> dict[str, Any]:
    """The same in PyTorch's schema (`torch.cuda.memory._snapshot`): segments, blocks, history and settings as dicts."""
    opened = opened_for(device)
    pinned = opened.pinned if isinstance(opened.port, PinnedHost) else None
    return torch_schema.of_allocators([opened.allocator], pinned)


def annotate_tensor(tensor: Tensor, said: str) -> None:
    """Note in the history what the tensor's memory is. (`torch.cuda.memory._annotate_tensor`)"""
    block = tensor.storage.block
    if not isinstance(block, Block):
        raise ValueError(f"expected a tensor whose memory is the allocator's, got {tensor!r}")  # noqa: TRY004 -- PyTorch's
    with history_annotations.metadata_for_now(said):
        block.pool.note_block(block)


def set_allocator_settings(settings: str) -> None:
    """New settings for the allocators of all devices (`torch.cuda.memory._set_allocator_settings`).

    FOREBAY_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, in this order, say what holds at the start.
    Raises ValueError with PyTorch's words; what stands before the mistake holds in spite of it.

    >>> import forebay
    >>> forebay.memory.set_allocator_settings("max_split_size_mb:64")
    >>> forebay.memory.set_allocator_settings("")
    """
    process_settings.apply(settings)


def set_per_process_memory_fraction(fraction: float, device: Device | str | int | None = None) -> None:
    """Reserve at most this share (0 to 1) of the device's memory; 1 is without a limit. Opens the device.

    Of an MPS device: take no more where this share (0 to 2) of the recommended memory is taken; 0 is without a limit.
    """
    opened_for(device).allocator.set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: Device | str | int | None = None) -> float:
    """The limit as a share of the device's memory, 1.0 without one; of an MPS device what was set, at first 1.7."""
    return opened_for(device).allocator.memory_fraction()


def caching_allocator_enable(value: bool = True) -> None:
    """Whether memory given back is kept for later, on all devices from now on. (`torch.cuda.caching_allocator_enable`)

    Without, every allocation is the device's own, which is slow and uncounted, and finds a program's mistakes sooner.
    No limit of the allocator's holds then: no fraction, no watermark, no longest buffer of MPS.
    FOREBAY_NO_MEMORY_CACHING=1, or PyTorch's PYTORCH_NO_CUDA_MEMORY_CACHING=1, says so from the start.
    """
    process_settings.enable_caching(value)


@contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Without the cache meanwhile. (`torch.cuda.caching_allocator_disabled`)

    >>> import forebay
    >>> with forebay.memory.caching_allocator_disabled():
    ...     block = forebay.allocate(1000, "host:0")
    >>> block
    <UncachedBlock at 0x..., 1000 bytes>
    """
    before = process_settings.caching
    process_settings.enable_caching(False)
    try:
        yield
    finally:
        process_settings.enable_caching(before)


def attach_out_of_memory_observer(observer: Observer, device: Device | str | int | None = None) -> Callable[[], None]:
    """Call `observer(index, asked, total, free)`, all but the index bytes, before OutOfMemory is raised.

    `total` is the device's memory, or the limit. Gives a function that ends it. What an observer raises is raised
    instead. Opens the device. (`torch._C._cuda_attach_out_of_memory_observer`)
    """
    observers = opened_for(device).allocator.observers
    observers.append(observer)
    return lambda: observers.remove(observer) if observer in observers else None
