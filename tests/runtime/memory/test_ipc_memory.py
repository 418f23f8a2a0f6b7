"""What one process sees of sharing: segments that move under their address, handles that are refused, pickles."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import forebay
from forebay import cuda
from forebay.backends.common import mmap as common_mmap
from forebay.backends.common import shared_file
from forebay.backends.common.shared_file import SharedFile
from forebay.errors import DeviceError, ForebayError, Unsupported
from forebay.interop import numpy as arrays
from forebay.runtime.devices.current import opened_for
from forebay.runtime.memory import ipc_memory

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared through memfd_create"),
]
HOST, MIB = "host:0", 1 << 20


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", count=2):
        yield opened_for("cuda:0")


def descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def gate():
    found = threading.Event()
    yield found
    found.set()


def test_a_segment_keeps_its_address_and_what_is_in_it(emulated):
    tensor = forebay.tensor(np.arange(100_000, dtype="i4"), device="cuda")
    address = tensor.data_ptr()
    first = ipc_memory.send(tensor.storage)
    assert tensor.data_ptr() == address
    assert tensor.tolist() == list(range(100_000))
    second = ipc_memory.send(tensor[5:].storage)
    assert (first.handle, first.offset) == (second.handle, second.offset)
    assert first.lease != second.lease
    assert len(first.handle) == 64


def test_untouched_memory_costs_nothing():
    """A segment that is larger than the machine, in which one page was written."""
    with forebay.emulate("cuda", memory="4TiB"):
        block = forebay.allocate(1 << 40, "cuda")
        port, queue = opened_for("cuda").port, opened_for("cuda").default_queue
        queue.fill(block.address + (1 << 39), 7, 3)
        queue.wait(queue.signal())
        _, offset = port.share(block.address + 5)
        assert offset == 5
        back = np.zeros(4, np.uint8)
        queue.copy(back.ctypes.data, block.address + (1 << 39), 4)
        queue.wait(queue.signal())
        assert back.tolist() == [7, 7, 7, 0]
        del block


def test_only_touched_pages_are_copied():
    pages = common_mmap.map_memory(64 * MIB, promised=False)
    page = np.frombuffer((mmap.PAGESIZE * np.ctypeslib.ctypes.c_char).from_address(pages + 40 * MIB), np.uint8)
    page[0] = 1
    runs = list(common_mmap.touched_runs(pages, 64 * MIB))
    assert sum(size for _, size in runs) <= 2 * MIB  # a huge page
    assert any(address <= pages + 40 * MIB < address + size for address, size in runs)
    common_mmap.unmap_memory(pages, 64 * MIB)


def test_what_runs_is_waited_for_and_nothing_else_begins(emulated, gate):
    """The first time a segment is sent. What waits for an event is at no memory, so nobody waits for that."""
    tensor, other = (forebay.empty(1000, dtype=forebay.uint8, device="cuda") for _ in range(2))
    busy, waiting = forebay.Stream("cuda"), forebay.Stream("cuda")
    began = threading.Event()
    busy.queue.call(lambda: (began.set(), gate.wait(20)))
    assert began.wait(20)
    waiting.wait_stream(busy)
    with waiting:
        tensor.fill_(3)
    done = threading.Thread(target=ipc_memory.send, args=(tensor.storage,))
    done.start()
    done.join(0.2)
    assert done.is_alive()
    late = forebay.Stream("cuda")  # made meanwhile, it begins nothing either
    with late:
        other.fill_(2)
    assert not late.query()
    gate.set()
    done.join(20)
    assert not done.is_alive()
    forebay.synchronize("cuda")
    assert (tensor.tolist(), other.tolist()) == ([3] * 1000, [2] * 1000)


def test_who_only_waits_does_not_hold_up_sending(emulated, gate):
    """A queue of another device is busy; the queue that waits for it writes to what is sent, later."""
    tensor = forebay.empty(1000, dtype=forebay.uint8, device="cuda:0")
    far, here = forebay.Stream("cuda:1"), forebay.Stream("cuda:0")
    far.queue.call(lambda: gate.wait(20))
    here.wait_stream(far)
    with here:
        tensor.fill_(9)
        sent = ipc_memory.send(tensor.storage)
    assert sent.event_sync_required
    gate.set()
    here.synchronize()
    assert tensor.tolist() == [9] * 1000


def test_a_queue_that_is_made_while_a_segment_comes_to_rest_goes_on(emulated):
    """It is paused by one thread just as another one resumes all that were."""
    moving = emulated.port._sharing
    ending = threading.Thread(target=moving._resume_new)
    pauses = []

    class Made:
        def pause_within(self, nanoseconds):
            pauses.append(1)
            ending.start()
            ending.join(0.1)  # it has to wait for us

        def resume(self):
            pauses.pop()

    moving._held = 1
    moving.hold(Made())
    ending.join(20)
    assert pauses == []


def test_sending_from_a_queues_own_thread(emulated):
    tensor = forebay.zeros(1000, dtype=forebay.uint8, device="cuda")
    sent = []
    stream = forebay.current_stream("cuda")
    stream.queue.call(lambda: sent.append(emulated.port.share(tensor.data_ptr())))
    stream.synchronize()
    assert len(sent) == 1


def test_no_event_for_memory_that_is_ready(emulated, gate):
    tensor = forebay.zeros(8, device="cuda")
    ipc_memory.send(tensor.storage)
    forebay.synchronize("cuda")
    assert not ipc_memory.send(tensor.storage).event_sync_required
    stream = forebay.Stream("cuda")
    stream.queue.call(lambda: gate.wait(20))
    assert not ipc_memory.send(tensor.storage).event_sync_required  # nobody said that it works there
    with stream:
        assert ipc_memory.send(tensor.storage).event_sync_required


def test_the_stream_that_memory_was_made_on_counts_wherever_it_is_sent(emulated, gate):
    """Multiprocessing's queues send from a thread of their own."""
    stream = forebay.Stream("cuda")
    with stream:
        tensor = forebay.zeros(8, device="cuda")
        ipc_memory.send(tensor.storage)
        stream.queue.call(lambda: gate.wait(20))
    assert ipc_memory.send(tensor.storage).event_sync_required


@pytest.mark.parametrize("settings", ["expandable_segments:True"])
def test_growing_segments_are_refused_in_pytorchs_words(emulated, settings):
    forebay.memory.set_allocator_settings(settings)
    try:
        tensor = forebay.zeros(8, device="cuda")
        with pytest.raises(
            Unsupported, match=r"^Tensors allocated with expandable_segments:True cannot be shared between"
        ):
            ipc_memory.send(tensor.storage)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")


def test_a_port_that_cannot_says_so(fake):
    with pytest.raises(Unsupported) as caught:
        forebay.Event("fake", interprocess=True).ipc_handle()
    assert caught.value.ability == "Shares"


HANDLE = struct.Struct("<4sIIQQQ16s12x")


def changed(handle, **changes):
    return shared_file.Handle(*HANDLE.unpack(handle))._replace(**changes).packed()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": b"0123456789abcdef"}, "shares this no longer, or never did"),
        ({"number": 1}, "shares this no longer, or never did"),  # standard output
        ({"number": 99999}, "shares this no longer, or never did"),
        ({"process": (1 << 22) - 1}, "is gone"),
        ({"process": 0}, "is gone"),
        ({"purpose": b"xxxx"}, "no handle of that"),
        ({"nbytes": 4096}, "not as large as it says"),
    ],
)
def test_a_forged_handle_opens_nothing(emulated, changes, words):
    file = SharedFile.made(8192)
    files = descriptors()
    with pytest.raises(DeviceError, match=words) as caught:
        emulated.port.open_shared(changed(file.handle(b"psMm"), **changes))
    assert caught.value.code == 400
    assert descriptors() == files
    file.close()
    file.unmap()


def test_memory_is_opened_until_it_is_closed(emulated):
    file = SharedFile.made(8192)
    handle = file.handle(b"psMm")
    address, nbytes = emulated.port.open_shared(handle)
    assert nbytes == 8192
    assert address != file.address
    file.close()
    with pytest.raises(DeviceError, match="no longer"):
        emulated.port.open_shared(handle)
    emulated.port.close_shared(address)
    for foreign in (address, 0, file.address):
        with pytest.raises(DeviceError, match="not an address that `open_shared` gave"):
            emulated.port.close_shared(foreign)
    file.unmap()


@pytest.mark.parametrize("data", [b"", b"x" * 63, b"x" * 65, "x" * 64, None, 64])
def test_no_handle_at_all(emulated, data):
    with pytest.raises(ForebayError, match="cudaIpcEventHandle_t expects byte-like object of size 64, but got"):
        forebay.Event.from_ipc_handle("cuda:0", data)
    with pytest.raises(DeviceError, match="a handle is 64 bytes"):
        emulated.port.open_shared(data)


def test_ones_own_event(emulated):
    event = forebay.Event("cuda", interprocess=True)
    with pytest.raises(DeviceError, match="invalid device context") as caught:
        forebay.Event.from_ipc_handle("cuda:0", event.ipc_handle())
    assert caught.value.code == 201


@pytest.mark.parametrize("flags", [{}, {"enable_timing": True}, {"enable_timing": True, "interprocess": True}])
def test_events_that_cannot_go(emulated, flags):
    event = forebay.Event("cuda", **flags)
    with pytest.raises(DeviceError, match="CUDA error: invalid argument") as caught:
        event.ipc_handle()
    assert caught.value.code == 1
    if flags.get("interprocess"):
        with pytest.raises(DeviceError, match="invalid argument"):
            event.record()


def test_what_an_event_refuses_is_told_in_the_name_of_its_kind():
    with forebay.emulate("mtia"), pytest.raises(DeviceError, match="MTIA error: invalid argument") as caught:
        forebay.Event("mtia").ipc_handle()
    assert "nvidia" not in str(caught.value)


def test_an_interprocess_event_is_an_event(emulated, gate):
    event = forebay.Event("cuda", interprocess=True)
    assert event.query()
    event.synchronize()
    stream = forebay.Stream("cuda")
    stream.queue.call(lambda: gate.wait(20))
    event.record(stream)
    assert not event.query()
    assert event.ipc_handle() == event.ipc_handle()
    other_stream = forebay.Stream("cuda")
    other_stream.wait_event(event)
    assert not other_stream.query()
    gate.set()
    other_stream.synchronize()
    event.synchronize()
    assert event.query()


def test_thousands_of_events_share_a_descriptor(emulated):
    events = [forebay.Event("cuda", interprocess=True) for _ in range(5000)]
    files = descriptors()
    handles = {event.ipc_handle() for event in events}
    assert len(handles) == 5000
    assert descriptors() <= files + 5
    files = descriptors()
    del events
    gc.collect()
    again = [forebay.Event("cuda", interprocess=True) for _ in range(5000)]
    assert not handles & {event.ipc_handle() for event in again}
    assert descriptors() == files


def test_the_end_of_an_emulation_lets_go():
    files = descriptors()
    for _ in range(20):
        with forebay.emulate("cuda"):
            ipc_memory.send(forebay.zeros(8, device="cuda").storage)
    assert ipc_memory.sent_count() == 0
    assert descriptors() <= files + 1  # the page of events


def test_numpy_gets_zeros_from_a_segment_that_is_shared():
    """Pages that others may have cannot be advised away, as NumPy's zeros are made."""
    host = opened_for(HOST)
    with arrays.serving(HOST):
        array = np.ones(48 * MIB, np.uint8)
        address = array.ctypes.data
        host.port.share(address)
        del array
        zeros = np.zeros(48 * MIB, np.uint8)
        assert zeros.ctypes.data == address
        assert not zeros.any()
        del zeros
    forebay.memory.empty_cache(HOST)


def test_a_plain_pickle_is_a_copy(emulated):
    tensor = forebay.tensor(np.arange(6, dtype="f8").reshape(2, 3), device="cuda:1")
    for part in (tensor, tensor[:, 1], tensor[:0], tensor[0, 0]):
        again = pickle.loads(pickle.dumps(part))
        assert (again.shape, again.dtype, again.device) == (part.shape, part.dtype, part.device)
        assert again.tolist() == part.tolist()
    again = pickle.loads(pickle.dumps(tensor))
    again.fill_(0)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copy.copy(tensor).data_ptr() == tensor.data_ptr()
    assert copy.deepcopy(tensor).data_ptr() != tensor.data_ptr()


def test_memory_of_others_is_copied_on_its_way():
    tensor = forebay.from_numpy(np.arange(3.0))
    again = ForkingPickler.loads(ForkingPickler.dumps(tensor))
    assert again.tolist() == [0, 1, 2]
    assert again.data_ptr() != tensor.data_ptr()


def test_uncached_memory_is_shared_too(emulated):
    with forebay.memory.caching_allocator_disabled():
        tensor = forebay.zeros(1000, device="cuda")
        sent = ipc_memory.send(tensor.storage)
    assert sent.offset == 0
    del tensor
    ipc_memory.forget_kind("cuda")


def test_guarded_memory_is_shared_and_stays_guarded():
    program = """
        import ctypes, forebay
        from forebay.runtime.memory import ipc_memory as sharing
        with forebay.emulate("cuda", guard=True):
            tensor = forebay.full((1000,), 3.0, device="cuda")
            sharing.send(tensor.storage)
            assert tensor.tolist() == [3.0] * 1000
            print("shared", flush=True)
            ctypes.string_at(tensor.data_ptr(), 1)
    """
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "shared\n", done.stderr
    assert done.returncode == -signal.SIGSEGV
    assert "cuda:0: the host touched device memory outside queued work" in done.stderr


def test_a_capture_takes_no_part(emulated):
    """What another process does cannot be repeated by a graph: CUDA's 900, and the capture is broken."""
    tensor, event = forebay.zeros(8, device="cuda"), forebay.Event("cuda", interprocess=True)
    for use in (event.record, lambda: ipc_memory.send(tensor.storage)):
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        with cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
            with pytest.raises(DeviceError, match="not permitted when stream is capturing") as caught:
                use()
            assert caught.value.code == 900
            with pytest.raises(DeviceError):
                graph.capture_end()
