"""The API of `torch.mtia` over forebay's runtime. Differences from PyTorch: docs/differences.md.

Examples
--------
>>> import forebay, forebay.mtia as mtia
>>> with forebay.emulate("mtia", count=2):
...     with mtia.device(1):
...         print(mtia.current_device(), mtia.get_device_properties()["name"])
1 MTIA v2 (emulated)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay.mtia._kind import MTIA as _MTIA
from forebay.mtia._kind import DeferredMtiaCallError
from forebay.mtia._utils import _get_device_index
from forebay.mtia.devices import (
    _exchange_device,
    _maybe_exchange_device,
    device,
    get_device_capability,
    get_device_properties,
    is_bf16_supported,
    set_device,
)
from forebay.mtia.lifecycle import (
    _is_compiled,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _LazySeedTracker,
    _queued_calls,
    current_device,
    device_count,
    init,
    is_available,
    is_initialized,
    synchronize,
)
from forebay.mtia.memory import (
    attach_out_of_memory_observer,
    empty_cache,
    max_memory_allocated,
    memory_allocated,
    memory_stats,
    record_memory_history,
    reset_peak_memory_stats,
    snapshot,
)
from forebay.mtia.mtia_graph import MTIAGraph, graph, graph_pool_handle, is_current_stream_capturing
from forebay.mtia.random import (
    _RANDOMS,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from forebay.mtia.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from forebay.mtia.streams import set_stream_by_id as _set_stream_by_id

if TYPE_CHECKING:
    from forebay.runtime.random.generator import Generator

    default_generators: tuple[Generator, ...]

__all__ = [
    "DeferredMtiaCallError",
    "Event",
    "MTIAGraph",
    "Stream",
    "StreamContext",
    "attach_out_of_memory_observer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "record_memory_history",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "snapshot",
    "stream",
    "synchronize",
]

# Attributes whose value changes over time.
_DYNAMIC: dict[str, Callable[[], Any]] = {
    "default_generators": _RANDOMS.default_generators,
    "_initialized": lambda: _MTIA.initialisation.done,
    "_initialization_lock": lambda: _MTIA.initialisation.lock,
    "_tls": lambda: _MTIA.initialisation.thread_state,
    "_lazy_seed_tracker": lambda: _MTIA.initialisation.seeds,
}


def __getattr__(name: str) -> Any:
    if name in _DYNAMIC:
        return _DYNAMIC[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
