"""Invalid requests and failing callbacks raise errors and leave the allocator consistent."""

from __future__ import annotations

import contextlib
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay import ForebayWarning, OutOfMemory
from forebay.errors import ForebayError
from forebay.simulate import Device

MIB = 1 << 20
TOTAL = 100 * MIB


@pytest.fixture(params=["", "expandable_segments:True", "max_split_size_mb:30,garbage_collection_threshold:0.5"])
def gpu(request):
    device = Device(TOTAL, request.param)
    yield device
    assert device.broken() is None
    for address in [*device._live]:
        device.free(address)
    device.empty_cache()
    assert (device.device_used, device.stats()["reserved_bytes.all.current"]) == (0, 0)


@pytest.mark.parametrize(
    ("nbytes", "kind", "words"),
    [
        (-1, ValueError, "Invalid memory size: -1"),
        (-(1 << 63), ValueError, "Invalid memory size"),
        (1.5, TypeError, None),
        ("4096", TypeError, None),
        (None, TypeError, None),
        (TOTAL + 1, OutOfMemory, "Tried to allocate 102.00 MiB"),
        ((1 << 60) - 1, OutOfMemory, "Tried to allocate 1073741824.00 GiB"),
        (1 << 60, OutOfMemory, "more than 1EB"),
        (1 << 63, OutOfMemory, "more than 1EB"),
        (1 << 100, OutOfMemory, "more than 1EB"),
    ],
)
def test_invalid_size_changes_nothing(gpu, nbytes, kind, words):
    kept = gpu.allocate(5 * MIB)
    before = gpu.stats()["allocation.all.allocated"]
    with pytest.raises(kind, match=words):
        gpu.allocate(nbytes)
    assert gpu.stats()["allocation.all.allocated"] == before
    assert gpu.allocate(0) == 0
    gpu.free(kept)


def test_unknown_addresses_are_rejected(gpu):
    address = gpu.allocate(1000)
    for foreign in (1, 512, address + 512, address + 1, 1 << 50):
        for use in (gpu.free, lambda address: gpu.record_stream(address, 1)):
            with pytest.raises(ForebayError, match=f"invalid device pointer: {foreign:#x}"):
                use(foreign)
    gpu.free(0)
    gpu.free(address)
    with pytest.raises(ForebayError, match="invalid device pointer"):
        gpu.free(address)
    assert gpu.stats()["allocation.all.freed"] == 1


def test_unknown_pools_are_rejected(gpu):
    pool = gpu.new_pool()
    with gpu.use_pool(pool):
        kept = gpu.allocate(1000)
        with pytest.raises(ForebayError, match="already recording"), gpu.use_pool(pool):
            pass
    with pytest.raises(ForebayError, match="no memory pool"):
        gpu.release_pool((0, 77))
    gpu.release_pool(pool)
    with pytest.raises(ForebayError, match="released too often"):
        gpu.release_pool(pool)
    gpu.free(kept)
    gpu.empty_cache()
    with pytest.raises(ForebayError, match="no memory pool"):
        gpu.release_pool(pool)


KEYS = (
    "max_split_size_mb roundup_power2_divisions garbage_collection_threshold expandable_segments large_segment_size_mb "
    "max_non_split_rounding_mb expandable_segments_reserve backend throw_on_cudamalloc_oom per_process_memory_fraction"
)
VALUES = "[ ] : , > True False 0 1 16 40 0.5 2G 18446744073709551616 -1 1e400 nan native é \0"
words = st.sampled_from([*KEYS.split(), *VALUES.split(), " "])
texts = st.lists(words, max_size=12).map("".join) | st.text(max_size=30)
pairs = st.tuples(words, words).map(":".join)


@settings(max_examples=300, deadline=None)
@given(start=st.just("") | pairs, later=st.lists(pairs | texts, max_size=4))
def test_arbitrary_settings_keep_the_allocator_consistent(start, later):
    """Every settings text is accepted or rejected with an error; the allocator stays consistent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForebayWarning)
        try:
            gpu = Device(TOTAL, start)
        except (ValueError, ForebayError):
            gpu = Device(TOTAL)
        held = []
        for text in later:
            with contextlib.suppress(ValueError, ForebayError):
                gpu.apply_settings(text)
            for nbytes in (1000, 3 * MIB, 25 * MIB):
                with contextlib.suppress(OutOfMemory):
                    held.append(gpu.allocate(nbytes))
            if held:
                gpu.free(held.pop())
            assert gpu.broken() is None
    for address in held:
        gpu.free(address)
    gpu.empty_cache()
    assert gpu.broken() is None
    assert gpu.device_used == 0


# Observers and callbacks


def test_exception_of_an_observer_propagates(gpu):
    """The exception replaces the OutOfMemory; the statistics stay correct."""

    def observer(*_):
        raise LookupError("mine")

    gpu.add_out_of_memory_observer(observer)
    with pytest.raises(LookupError, match="mine"):
        gpu.allocate(2 * TOTAL)
    assert gpu.stats()["num_ooms"] == 1
    gpu.free(gpu.allocate(TOTAL // 2))


def test_observer_may_allocate_and_free(gpu):
    kept = [gpu.allocate(60 * MIB)]

    def observer(*_):
        gpu.free(kept.pop())
        gpu.empty_cache()
        kept.append(gpu.allocate(10 * MIB))

    gpu.add_out_of_memory_observer(observer)
    with pytest.raises(OutOfMemory):
        gpu.allocate(60 * MIB)
    assert gpu.stats()["num_ooms"] == 1
    gpu.free(gpu.allocate(60 * MIB))


def test_exception_of_a_callback_changes_nothing(gpu):
    def callback():
        raise LookupError("mine")

    gpu.allocator.free_memory_callbacks.append(callback)
    with pytest.raises(LookupError, match="mine"):
        gpu.allocate(1000)
    assert gpu.device_used == 0
    gpu.allocator.free_memory_callbacks.clear()
    gpu.free(gpu.allocate(1000))


def test_callback_that_allocates_is_not_called_recursively(gpu):
    """A recursive call would not end."""
    allocated = []

    def callback():
        allocated.append(gpu.allocate(3 * MIB))
        return True

    gpu.allocator.free_memory_callbacks.append(callback)
    block = gpu.allocate(50 * MIB)
    assert (len(allocated), block in allocated) == (1, False)
    with pytest.raises(OutOfMemory):
        gpu.allocate(90 * MIB)
    assert len(allocated) == 2
