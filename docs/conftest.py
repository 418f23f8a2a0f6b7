"""Fixtures for the examples in the documentation. Each page starts with an empty cache and restores the CPU device."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import forebay
from forebay.interop import numpy as numpy_interop
from forebay.runtime.lifecycle import emulation


@pytest.fixture(autouse=True)
def restored_cpu_device() -> Iterator[None]:
    gc.collect()
    forebay.memory.empty_cache("cpu")
    forebay.memory.reset_accumulated_memory_stats("cpu")
    _, capacity = forebay.memory.mem_get_info("cpu")
    yield
    for running in [*emulation._running.values()]:  # left running by a page that failed
        running.stop()
    numpy_interop.uninstall()
    forebay.set_default_device(None)
    forebay.memory.record_history(None, device="cpu")
    forebay.memory.set_allocator_settings("expandable_segments:False")
    forebay.memory.set_per_process_memory_fraction(1, "cpu")
    forebay.memory.set_capacity(capacity, "cpu")
