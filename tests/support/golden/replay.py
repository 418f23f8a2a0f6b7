"""Replay of the operations of a golden trace on simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from forebay.errors import OutOfMemory
from forebay.runtime.allocator.summary import memory_summary
from support.golden.files import NotGolden, Trace, name_of_address

__all__ = ["Replay"]

_KINDS = (OutOfMemory, ValueError, TypeError, RuntimeError)
_BY_POOLS = "reserved_bytes_by_private_pools."


class Replay:
    """Devices of a trace, with their live blocks, pools and graphs."""

    def __init__(self, trace: Trace, make_device: Callable[..., Any], make_pinned: Callable[..., Any]) -> None:
        total, settings, other = trace.total_memory, trace.settings, trace.other_used
        self.make_pinned: Callable[[], Any] = lambda: make_pinned(settings)
        self.devices = [make_device(total, settings, other, index=index) for index in range(trace.devices)]
        self.total = [total for _ in self.devices]
        self.other = [other for _ in self.devices]
        self.live: dict[Any, tuple[int, int]] = {}  # device and address
        self.pinned: Any = None
        self.pinned_live: dict[Any, int] = {}
        self.pinned_names: dict[int, int] = {}  # by address: the number of the new block, counting from 1
        self.pinned_made = 0
        self.graphs: dict[str, tuple[int, Any]] = {}
        self.pools: dict[str, tuple[int, Any]] = {}
        self.entered: dict[str, AbstractContextManager[Any]] = {}
        self.shift: dict[int, int] = {}  # by device: pool ids are numbered relative to its first pool
        # Streams are numbered in the order of their creation in PyTorch, which is that of their first use.
        self.streams: list[dict[int, int]] = [{0: 0} for _ in self.devices]
        for stream in range(1, trace.config.get("streams", 0)):
            self._stream(0, stream)

    def _stream(self, device: int, stream: int) -> int:
        return self.streams[device].setdefault(stream, len(self.streams[device]))

    def do(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """Run an operation and return its result in the format of the traces."""
        arguments = {key: value for key, value in operation.items() if key not in {"op", "record", "via"}}
        method = getattr(self, f"_do_{operation['op']}", None)
        if method is None:
            raise NotGolden(f"unknown operation {operation['op']!r}")
        try:
            result: dict[str, Any] | None = method(**arguments)
        except Exception as error:  # noqa: BLE001 -- any error is a result to compare
            kind = next((kind for kind in _KINDS if isinstance(error, kind)), type(error))
            return {"error": kind.__name__, "message": str(error).partition("\n")[0]}
        return result or {}

    def _do_alloc(self, id: Any, size: int, stream: int = 0, device: int = 0, pool: str | None = None) -> Any:  # noqa: A002 -- named as in the traces
        queue = self._stream(device, stream)
        if pool is None:
            address = self.devices[device].allocate(size, queue)
        else:
            with self.devices[device].use_pool(self.pools[pool][1]):
                address = self.devices[device].allocate(size, queue)
        self.live[id] = device, address
        return {"addr": name_of_address(address)}

    def _do_free(self, id: Any) -> Any:  # noqa: A002 -- as above
        if id not in self.live:
            return {"skipped": "not live"}
        device, address = self.live.pop(id)
        self.devices[device].free(address)
        return None

    def _do_record_stream(self, id: Any, stream: int, device: int = 0) -> Any:  # noqa: A002 -- as above
        if id not in self.live:
            return {"skipped": "not live"}
        owner, address = self.live[id]
        self.devices[owner].record_stream(address, self._stream(device, stream))
        return None

    def _do_empty_cache(self) -> None:
        for device in self.devices:
            device.empty_cache()

    def _do_set_fraction(self, fraction: float, device: int = 0) -> None:
        self.devices[device].set_memory_fraction(fraction)

    def _do_set_allocator_settings(self, conf: str) -> None:
        for device in self.devices:
            device.apply_settings(conf)
        if self.pinned is not None:
            self.pinned.apply_settings(conf)

    def _do_reset_peak(self, device: int = 0) -> None:
        self.devices[device].reset_peak_stats()

    def _do_reset_accumulated(self, device: int = 0) -> None:
        self.devices[device].reset_accumulated_stats()

    def _do_hold(self, level: int = 1) -> None:
        for device in self._held():
            device.hold_events(level)

    def _do_release(self, stream: int | None = None, device: int = 0) -> None:
        if stream is None:
            for each in self._held():
                each.release_events()
            return
        queue = self._stream(device, stream)
        self.devices[device].release_events(queue)
        if self.pinned is not None:
            self.pinned.release_events(queue)

    def _held(self) -> list[Any]:
        return self.devices if self.pinned is None else [*self.devices, self.pinned]

    def _do_synchronize(self, stream: int | None = None, device: int = 0) -> None:
        queue = None if stream is None else self._stream(device, stream)
        self.devices[device].synchronize(queue)
        if self.pinned is not None:
            self.pinned.synchronize(queue)

    def _do_fail_next(self, n: int, device: int = 0) -> None:
        self.devices[device].fail_next(n)

    def _do_set_other_used(self, bytes: int, device: int = 0) -> None:  # noqa: A002 -- as above
        self.other[device] = bytes
        self.devices[device].set_other_used(bytes)

    def _do_record_history(self, **options: Any) -> None:
        for device in self.devices:
            device.record_history(**options)

    def _do_nothing(self, **_: Any) -> None:
        pass

    _do_snapshot = _do_stats = _do_wait = _do_set_device = _do_nothing

    def _do_summary(self, device: int = 0, abbreviated: bool = False) -> Any:
        return {"summary": memory_summary(self.devices[device].stats(), device, abbreviated=abbreviated)}

    def _do_mem_get_info(self, device: int = 0) -> Any:
        return {"mem_get_info": list(self.devices[device].memory_info())}

    def _do_trace(self, device: int = 0, keys: Sequence[str] = ()) -> Any:
        """Return the history. As in PyTorch, a snapshot covers all devices and adds an entry to each history."""
        snapshots = [each.snapshot() for each in self.devices]
        entries = []
        for entry in snapshots[device]["device_traces"][-1]:
            kept = {"action": entry["action"], "addr": name_of_address(entry["addr"]) if "addr" in entry else None}
            kept |= {"size": entry.get("size"), "stream": self._stream_name(device, entry.get("stream", 0))}
            entries.append(
                kept | {key: self._plain(device, entry[key]) for key in ("device_free", *keys) if key in entry}
            )
        return {"trace": entries}

    def _plain(self, device: int, value: Any) -> Any:
        return self._pool_name(device, value) if isinstance(value, tuple) else value

    def _stream_name(self, device: int, queue: int) -> Any:
        return next((stream for stream, number in self.streams[device].items() if number == queue), "?")

    # Private pools, numbered per process in PyTorch; the traced process made no others.

    def _do_pool_new(self, pool: str, device: int = 0, **options: bool) -> Any:
        pool_id = self.devices[device].new_pool(**options)
        self.pools[pool] = device, pool_id
        self.shift.setdefault(device, pool_id[1] - len(self.pools))
        return {"id": self._pool_name(device, pool_id)}

    def _pool_name(self, device: int, pool: Sequence[int]) -> list[int]:
        first, second = pool
        return [first, second - self.shift.get(device, 0) if second else 0]

    def _do_pool_del(self, pool: str) -> None:
        device, pool_id = self.pools[pool]
        self.devices[device].release_pool(pool_id)

    def _do_pool_enter(self, pool: str) -> None:
        device, pool_id = self.pools[pool]
        context = self.devices[device].use_pool(pool_id)
        context.__enter__()
        self.entered[pool] = context

    def _do_pool_leave(self, pool: str) -> None:
        self.entered.pop(pool).__exit__(None, None, None)

    # Graph captures.

    def _do_capture_begin(self, graph: str, stream: int, pool: str | None = None, device: int = 0) -> None:
        pool_id = None if pool is None else self.graphs[pool][1] if pool in self.graphs else self.pools[pool][1]
        capture = self.devices[device].begin_capture(self._stream(device, stream), pool_id)
        self.graphs[graph] = device, capture

    def _do_capture_end(self, graph: str) -> Any:
        device, capture = self.graphs[graph]
        self.devices[device].end_capture()
        return {"id": self._pool_name(device, capture)}

    def _do_graph_del(self, graph: str) -> None:
        device, capture = self.graphs.pop(graph)
        self.devices[device].release_capture(capture)

    # Pinned memory. A trace has the number of the block instead of its address, which depends on the system.

    def _do_host_alloc(self, id: Any, size: int) -> Any:  # noqa: A002 -- as above
        pinned = self._host()
        before = pinned.stats()["num_host_alloc"]
        self.pinned_live[id] = address = pinned.allocate(size)
        if pinned.stats()["num_host_alloc"] > before:
            self.pinned_names[address] = self.pinned_made = self.pinned_made + 1
        return {"block": self.pinned_names.get(address)}

    def _do_host_free(self, id: Any) -> None:  # noqa: A002 -- as above
        self._host().free(self.pinned_live.pop(id))

    def _do_host_record(self, id: Any, stream: int) -> None:  # noqa: A002 -- as above
        self._host().record_stream(self.pinned_live[id], self._stream(0, stream))

    def _do_host_empty_cache(self) -> None:
        self._host().empty_cache()

    def _do_host_reset_peak(self) -> None:
        self._host().reset_peak_stats()

    def _do_host_reset_accumulated(self) -> None:
        self._host().reset_accumulated_stats()

    def _host(self) -> Any:
        if self.pinned is None:
            self.pinned = self.make_pinned()
        return self.pinned

    # State that is compared after each operation.

    def stats(self, wanted: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Return the statistics named by the keys of `wanted`: "stats" or "stats1" of a device, "host_stats"."""
        found = {}
        for source in wanted:
            if source == "host_stats":
                found[source] = {key: n for key, n in self._host().stats().items() if "_time." not in key}
            else:
                device = int(source.removeprefix("stats") or 0)
                found[source] = {self._stat_name(device, key): n for key, n in self.devices[device].stats().items()}
        return found

    def _stat_name(self, device: int, key: str) -> str:
        if not key.startswith(_BY_POOLS):
            return key
        pool, _, rest = key.removeprefix(_BY_POOLS).partition(".")
        first, second = self._pool_name(device, [int(n) for n in pool.split("_")])
        return f"{_BY_POOLS}{first}_{second}.{rest}"

    def free_memory(self, used: Sequence[int] | None = None) -> list[int]:
        """Return the free bytes of each device, or what they would be if `used` bytes were used."""
        if used is None:
            return [device.memory_info()[0] for device in self.devices]
        return [max(0, self.total[i] - self.other[i] - each) for i, each in enumerate(used)]

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments and blocks of all devices in the format of the traces."""
        found = []
        for index, device in enumerate(self.devices):
            for segment in device.snapshot()["segments"]:
                named = {k: v for k, v in segment.items() if k not in {"address", "stream", "blocks", "frames"}}
                named["segment_pool_id"] = self._pool_name(index, segment["segment_pool_id"])
                named["address"] = name_of_address(segment["address"])
                named["stream"] = self._stream_name(index, segment["stream"])
                named["blocks"] = [
                    {"offset": block["address"] - segment["address"]}
                    | {key: block[key] for key in ("size", "requested_size", "state")}
                    for block in segment["blocks"]
                ]
                found.append(named)
        return found
