"""Memory of a device: statistics, peaks, limits, history, snapshots, pools. Names as in PyTorch if it has one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay._base.byte_sizes import parse_bytes
from forebay._base.device_spec import DeviceLike
from forebay._core import Block
from forebay.records.model import Snapshot
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.caching_allocator import OutOfMemoryObserver
from forebay.runtime.allocator.displayed import Statistics, SummaryText
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.runtime.allocator.summary import memory_summary as summary_of
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import annotations as history_annotations
from forebay.runtime.history import recording, torch_schema
from forebay.runtime.history.annotations import annotate, compile_context, metadata, set_metadata
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.runtime.memory.mem_pool import MemPool, use_mem_pool
from forebay.runtime.memory.peak import Peak
from forebay.runtime.settings import process_settings
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


# Written by tools/write_names.py from tools/names/memory.toml: edit the table, not these lines.


def memory_allocated(device: DeviceLike | None = None) -> int:
    """Return the bytes in use by live blocks, rounded up to the allocator's block sizes.

    As `torch.cuda.memory_allocated`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Examples
    --------
    >>> import forebay
    >>> forebay.memory.memory_allocated("cpu") >= 0
    True
    """
    return opened_for(device).allocator.current(ALLOCATED_BYTES)


def max_memory_allocated(device: DeviceLike | None = None) -> int:
    """Return the peak of `memory_allocated` since the device was opened or `reset_peak_memory_stats` was called.

    As `torch.cuda.max_memory_allocated`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    return opened_for(device).allocator.peak(ALLOCATED_BYTES)


def memory_reserved(device: DeviceLike | None = None) -> int:
    """Return the bytes of memory in segments that are reserved on the device, live or cached.

    As `torch.cuda.memory_reserved`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    return opened_for(device).allocator.current(RESERVED_BYTES)


def max_memory_reserved(device: DeviceLike | None = None) -> int:
    """Return the peak of `memory_reserved` since the device was opened or `reset_peak_memory_stats` was called.

    As `torch.cuda.max_memory_reserved`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    return opened_for(device).allocator.peak(RESERVED_BYTES)


def memory_stats(device: DeviceLike | None = None) -> dict[str, int]:
    """Return all statistics of the allocator under PyTorch's flat keys.

    As `torch.cuda.memory_stats`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    dict of str to int
        Counts and bytes under keys such as "allocated_bytes.all.current".

    Examples
    --------
    >>> import forebay
    >>> block = forebay.allocate(1000, "cpu")
    >>> forebay.memory.memory_stats("cpu")["requested_bytes.all.current"] >= 1000
    True
    """
    return Statistics(statistics.flat_stats(opened_for(device).allocator))


def memory_stats_as_nested_dict(device: DeviceLike | None = None) -> dict[str, Any]:
    """Return all statistics of the allocator as nested dicts.

    As `torch.cuda.memory_stats_as_nested_dict`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    dict
        Counts and bytes as `["allocated_bytes"]["all"]["current"]`.
    """
    return statistics.nested_stats(memory_stats(device))


def memory_summary(device: DeviceLike | None = None, abbreviated: bool = False) -> str:
    """Return the statistics of the allocator as a readable table.

    As `torch.cuda.memory_summary`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    abbreviated : bool, default False
        Omit the rows of the small and large pools.
    """
    opened = opened_for(device)
    numbers, (kind, index) = statistics.flat_stats(opened.allocator), (opened.device.kind, opened.device.index or 0)
    return SummaryText(summary_of(numbers, index, kind=kind, abbreviated=abbreviated))


def reset_peak_memory_stats(device: DeviceLike | None = None) -> None:
    """Reset all peak statistics of the allocator to the current values.

    As `torch.cuda.reset_peak_memory_stats`. Opens the device. Does not affect `peak`.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    opened_for(device).allocator.reset_peaks()


def reset_accumulated_memory_stats(device: DeviceLike | None = None) -> None:
    """Reset all accumulated statistics of the allocator to 0: "allocated", "freed", retries and ooms.

    As `torch.cuda.reset_accumulated_memory_stats`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    opened_for(device).allocator.reset_accumulated()


def peak(device: DeviceLike | None = None) -> Peak:
    """Measure the peak memory of a part of the program.

    Includes the allocations of all threads. Peaks nest, and are independent of `reset_peak_memory_stats`. Opens the
    device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    Peak
        A context manager with the peaks in bytes: `allocated` and `reserved`, and `allocated_above` and
        `reserved_above` relative to the start of the `with` block.

    Raises
    ------
    Unsupported
        If the device uses a pluggable allocator.

    Examples
    --------
    >>> import forebay
    >>> with forebay.memory.peak("cpu") as p:
    ...     forebay.zeros(1 << 20, dtype="uint8", device="cpu").tolist()[:1]
    [0]
    >>> p.allocated_above
    1048576
    """
    return Peak(opened_for(device))


def empty_cache(device: DeviceLike | None = None) -> None:
    """Release all segments without live blocks to the device.

    As `torch.cuda.empty_cache`. Opens the device and synchronises it, as pending work may still use the segments.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    opened_for(device).allocator.empty()


def host_memory_stats(device: DeviceLike | None = None) -> dict[str, int]:
    """Return all statistics of pinned host memory under PyTorch's flat keys.

    As `torch.cuda.host_memory_stats`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind, which shares its pinned memory; the current one by default.

    Returns
    -------
    dict of str to int
        Sizes in bytes as allocated, times in µs. "active" blocks are in use or wait for a copy; "allocated" ones are
        active or cached.

    Raises
    ------
    Unsupported
        If the device has no pinned host memory.

    Examples
    --------
    >>> import forebay
    >>> array = forebay.empty_pinned(1000, dtype="uint8", device="cpu")
    >>> forebay.memory.host_memory_stats("cpu")["active_bytes.current"] >= 1024
    True
    """
    return Statistics(opened_for(device).pinned.stats())


def host_memory_stats_as_nested_dict(device: DeviceLike | None = None) -> dict[str, Any]:
    """Return all statistics of pinned host memory as nested dicts.

    As `torch.cuda.host_memory_stats_as_nested_dict`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind; the current one by default.

    Returns
    -------
    dict
        The values of `host_memory_stats` as `["active_bytes"]["current"]`.

    Raises
    ------
    Unsupported
        If the device has no pinned host memory.
    """
    return opened_for(device).pinned.stats_as_nested_dict()


def reset_peak_host_memory_stats(device: DeviceLike | None = None) -> None:
    """Reset all peak statistics of pinned host memory to the current values, and the longest and shortest times to 0.

    As `torch.cuda.reset_peak_host_memory_stats`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind; the current one by default.

    Raises
    ------
    Unsupported
        If the device has no pinned host memory.
    """
    opened_for(device).pinned.reset_peaks()


def reset_accumulated_host_memory_stats(device: DeviceLike | None = None) -> None:
    """Reset all accumulated statistics of pinned host memory to 0: "allocated", "freed", calls and their total time.

    As `torch.cuda.reset_accumulated_host_memory_stats`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind; the current one by default.

    Raises
    ------
    Unsupported
        If the device has no pinned host memory.
    """
    opened_for(device).pinned.reset_accumulated()


def empty_host_cache(device: DeviceLike | None = None) -> None:
    """Unpin all cached pinned host memory.

    As `torch.accelerator.empty_host_cache`. Opens the device. Does not block: memory that a pending copy uses is kept.

    Parameters
    ----------
    device : device or str or int, optional
        A device of the kind; the current one by default.

    Raises
    ------
    Unsupported
        If the device has no pinned host memory.
    """
    opened_for(device).pinned.empty()


def mem_get_info(device: DeviceLike | None = None) -> tuple[int, int]:
    """Return the free and the total memory of the device.

    As `torch.cuda.mem_get_info`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    tuple of int
        Free bytes, without what this or another process has reserved, and total bytes.
    """
    return opened_for(device).port.memory_info()


def set_capacity(capacity: int | str, device: DeviceLike | None = None) -> None:
    """Set the total memory of the device.

    Opens the device.

    Parameters
    ----------
    capacity : int or str
        Bytes, or a size such as "16MiB".
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    Unsupported
        If the device's capacity cannot be changed.
    WrongState
        If more than `capacity` is reserved.
    """
    nbytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
    opened_for(device).set_capacity(nbytes)


def snapshot(device: DeviceLike | None = None, *, notes: Mapping[str, Any] | None = None) -> Snapshot:
    """Return the segments, blocks, statistics and recorded history of the device.

    Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    notes : mapping, optional
        JSON-serialisable values to store in the snapshot, beside the allocator's policy, which `forebay replay` needs:
        the settings, and whether the memory consists of segments (and their granularity) or of heaps.
    """
    return take_snapshot(opened_for(device), notes, for_program=True)


def memory_snapshot(device: DeviceLike | None = None) -> dict[str, Any]:
    """Return the segments, blocks, history and settings as dicts and lists in PyTorch's schema.

    As `torch.cuda.memory._snapshot`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.
    """
    opened = opened_for(device)
    host = opened.pinned.snapshot() if isinstance(opened.port, PinnedHost) else {}
    return torch_schema.snapshot_allocators([opened.allocator], opened.allocator.settings, host)


def set_allocator_settings(settings: str) -> None:
    """Change the settings of the allocators of all devices.

    As `torch.cuda.memory._set_allocator_settings`. The initial settings are those of the first environment variable set
    of FOREBAY_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.

    Parameters
    ----------
    settings : str
        Pairs of key and value, such as "max_split_size_mb:64,garbage_collection_threshold:0.8".

    Raises
    ------
    ValueError
        With PyTorch's text if the string is invalid. Keys before the error take effect.

    Examples
    --------
    >>> import forebay
    >>> forebay.memory.set_allocator_settings("max_split_size_mb:64")
    >>> forebay.memory.set_allocator_settings("")
    """
    process_settings.apply(settings)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike | None = None) -> None:
    """Limit the reserved memory to a fraction of the device's memory.

    As `torch.cuda.set_per_process_memory_fraction`. Opens the device.

    Parameters
    ----------
    fraction : float
        From 0 to 1, where 1 is no limit. For an MPS device from 0 to 2, a fraction of the recommended working set,
        where 0 is no limit.
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ValueError
        If the fraction is out of range.
    """
    opened_for(device).allocator.set_memory_fraction(fraction)


def get_per_process_memory_fraction(device: DeviceLike | None = None) -> float:
    """Return the limit of the reserved memory as a fraction of the device's memory.

    As `torch.cuda.get_per_process_memory_fraction`. Opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    float
        The fraction; 1.0 without a limit. For an MPS device the value that was set, initially 1.7.
    """
    return opened_for(device).allocator.memory_fraction()


def caching_allocator_enable(value: bool = True) -> None:
    """Enable or disable the caching allocator for all devices.

    As `torch.cuda.caching_allocator_enable`. Without the cache every allocation is a separate allocation of the device:
    slow and not counted, but it exposes use after free sooner. The limits of the allocator (fraction, watermarks, MPS's
    maximum buffer length) do not apply. FOREBAY_NO_MEMORY_CACHING=1, or PyTorch's PYTORCH_NO_CUDA_MEMORY_CACHING=1,
    disables the cache from the start.

    Parameters
    ----------
    value : bool, default True
        True to enable the cache, False to disable it.
    """
    process_settings.enable_caching(value)


def attach_out_of_memory_observer(
    observer: OutOfMemoryObserver, device: DeviceLike | None = None
) -> Callable[[], None]:
    """Register a function that is called before OutOfMemory is raised.

    As `torch._C._cuda_attach_out_of_memory_observer`. Opens the device.

    Parameters
    ----------
    observer : callable
        Called as `observer(index, requested, total, free)`: the device index, then in bytes the requested memory, the
        device's memory or the limit, and its free memory. An exception that it raises replaces OutOfMemory.
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    callable
        Function without arguments that removes the observer.
    """
    observers = opened_for(device).allocator.oom_observers
    observers.append(observer)
    return lambda: observers.remove(observer) if observer in observers else None


# End of the written lines.


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
    device: DeviceLike | None = None,
) -> None:
    """Start or stop recording every allocation and free.

    As `torch.cuda.memory._record_memory_history`. Opens the device.

    Parameters
    ----------
    max_entries : int or None, default 1_000_000
        Number of entries of the history, 48 bytes each; the newest are kept. None stops recording and discards them.
    depth : int, default 64
        Frames per Python stack, innermost first, at most 256.
    context : {"state", "alloc", "all"} or None, default "alloc"
        Stacks to capture: of live blocks ("state"), also of entries ("alloc"), also of frees ("all"), or none.
    keep : bool, default False
        Keep the entries of an earlier recording.
    skip_actions : collection of str, optional
        Actions that are not recorded, by PyTorch's names ("alloc", "free_requested", ...).
    annotations : bool, default False
        Record the spans of `annotate`.
    compile_context : bool, default False
        Record the contexts of `compile_context` in the entries.
    pinned : bool, default False
        Record pinned host memory, too.
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ForebayError
        If `context` or an action is unknown.
    TypeError, ValueError
        If a number is invalid.
    """
    if max_entries is not None and not isinstance(max_entries, int):
        raise TypeError(f"max_entries must be an int or None, not {type(max_entries).__name__}")
    if max_entries is not None and max_entries < 1:
        raise ValueError(f"max_entries must be at least 1, or None to stop; got {max_entries}")
    if depth < 0:
        raise ValueError(f"depth must be a number of frames, not {depth}")
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
    if pinned or isinstance(opened.port, PinnedHost):  # started or stopped with every recording, as in PyTorch
        enabled = "all" if pinned and max_entries is not None else None
        opened.pinned.history.start(enabled, context, max_entries or 0, clear_history=not keep, depth=depth)


def annotate_tensor(tensor: Tensor, said: str) -> None:
    """Add an annotation of the tensor's memory to the history.

    As `torch.cuda.memory._annotate_tensor`.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    said : str
        Metadata of the entry.

    Raises
    ------
    ValueError
        If the tensor's memory is not from the allocator.
    """
    block = tensor.raw_storage.block
    if not isinstance(block, Block):
        raise ValueError(f"expected a tensor whose memory is the allocator's, got {tensor!r}")  # noqa: TRY004 -- PyTorch's
    with history_annotations.temporary_metadata(said):
        block.pool.record_annotation(block)


@contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Disable the caching allocator for all devices inside the `with` block.

    As `torch.cuda.caching_allocator_disabled`. Restores the previous setting on exit.

    Examples
    --------
    >>> import forebay
    >>> with forebay.memory.caching_allocator_disabled():
    ...     block = forebay.allocate(1000, "cpu")
    >>> block
    <UncachedBlock at 0x..., 1000 bytes>
    """
    before = process_settings.caching
    process_settings.enable_caching(False)
    try:
        yield
    finally:
        process_settings.enable_caching(before)
