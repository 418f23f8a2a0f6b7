"""The documentation's examples are tests: each page begins with an empty cache and leaves the device as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import forebay
from forebay.interop import numpy as served
from forebay.runtime.lifecycle import emulation


@pytest.fixture(autouse=True)
def device_as_it_was() -> Iterator[None]:
    gc.collect()
    forebay.memory.empty_cache("host:0")
    forebay.memory.reset_accumulated_memory_stats("host:0")
    _, capacity = forebay.memory.mem_get_info("host:0")
    yield
    for running in [*emulation._running.values()]:  # of a page that failed on its way
        running.stop()
    served.uninstall()
    forebay.memory.record_history(None, device="host:0")
    forebay.memory.set_allocator_settings("expandable_segments:False")
    forebay.memory.set_per_process_memory_fraction(1, "host:0")
    forebay.memory.set_capacity(capacity, "host:0")
