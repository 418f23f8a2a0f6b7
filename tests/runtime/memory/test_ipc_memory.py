"""Shared device memory within one process: segments remapped at their address, invalid handles, pickles."""

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
from forebay.backends.common.shared_slots import Lease
from forebay.errors import DeviceError, ForebayError, Unsupported, WrongState
from forebay.interop import numpy as arrays
from forebay.runtime.devices.current import opened_for
from forebay.runtime.memory import ipc_memory

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared through memfd_create"),
]
HOST, MIB = "cpu", 1 << 20


@pytest.fixture
def emulated():
    with forebay.emulate("cuda", count=2):
        yield opened_for("cuda:0")


def descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def test_send_keeps_address_and_contents(emulated):
    tensor = forebay.tensor(np.arange(100_000, dtype="i4"), device="cuda")
    address = tensor.data_ptr()
    first = ipc_memory.send(tensor.raw_storage)
    assert tensor.data_ptr() == address
    assert tensor.tolist() == list(range(100_000))
    second = ipc_memory.send(tensor[5:].raw_storage)
    assert (first.handle, first.offset) == (second.handle, second.offset)
    assert first.lease != second.lease
    assert len(first.handle) == 64


@pytest.mark.slow
def test_share_does_not_copy_untouched_pages():
    """A segment larger than the machine's memory, with one written page."""
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


def test_touched_runs_covers_only_written_pages():
    pages = common_mmap.map_memory(64 * MIB, charged=False)
    page = np.frombuffer((mmap.PAGESIZE * np.ctypeslib.ctypes.c_char).from_address(pages + 40 * MIB), np.uint8)
    page[0] = 1
    runs = list(common_mmap.touched_ranges(pages, 64 * MIB))
    assert sum(size for _, size in runs) <= 2 * MIB  # a huge page
    assert any(address <= pages + 40 * MIB < address + size for address, size in runs)
    common_mmap.unmap_memory(pages, 64 * MIB)


def test_first_send_waits_for_running_work_and_pauses_queues(emulated, gate):
    """Work that waits for an event does not access memory yet, so the send does not wait for it."""
    tensor, other = (forebay.empty(1000, dtype=forebay.uint8, device="cuda") for _ in range(2))
    busy, waiting = forebay.Stream("cuda"), forebay.Stream("cuda")
    began = threading.Event()
    busy.queue.call(lambda: (began.set(), gate.wait(20)))
    assert began.wait(20)
    waiting.wait_stream(busy)
    with waiting:
        tensor.fill_(3)
    done = threading.Thread(target=ipc_memory.send, args=(tensor.raw_storage,))
    done.start()
    done.join(0.2)
    assert done.is_alive()
    late = forebay.Stream("cuda")  # made during the send: paused, too
    with late:
        other.fill_(2)
    assert not late.query()
    gate.set()
    done.join(20)
    assert not done.is_alive()
    forebay.synchronize("cuda")
    assert (tensor.tolist(), other.tolist()) == ([3] * 1000, [2] * 1000)


def test_send_does_not_wait_for_work_that_waits_for_an_event(emulated, gate):
    """A queue of another device is busy; a queue that waits for it will write to the sent memory later."""
    tensor = forebay.empty(1000, dtype=forebay.uint8, device="cuda:0")
    far, here = forebay.Stream("cuda:1"), forebay.Stream("cuda:0")
    far.queue.call(lambda: gate.wait(20))
    here.wait_stream(far)
    with here:
        tensor.fill_(9)
        sent = ipc_memory.send(tensor.raw_storage)
    assert sent.event_sync_required
    gate.set()
    here.synchronize()
    assert tensor.tolist() == [9] * 1000


def test_queue_made_while_others_are_resumed_is_not_left_paused(emulated):
    """One thread pauses the new queue just when another thread resumes all paused queues."""
    sharing = emulated.port._sharing
    ending = threading.Thread(target=sharing._resume_new)
    pauses = []

    class NewQueue:
        def pause_within(self, nanoseconds):
            pauses.append(1)
            ending.start()
            ending.join(0.1)  # must wait for this thread

        def resume(self):
            pauses.pop()

    sharing._moves = 1
    sharing.on_new_queue(NewQueue())
    ending.join(20)
    assert pauses == []


def test_share_from_the_thread_of_a_queue(emulated):
    tensor = forebay.zeros(1000, dtype=forebay.uint8, device="cuda")
    sent = []
    stream = forebay.current_stream("cuda")
    stream.queue.call(lambda: sent.append(emulated.port.share(tensor.data_ptr())))
    stream.synchronize()
    assert len(sent) == 1


def test_send_needs_no_event_without_pending_work(emulated, gate):
    tensor = forebay.zeros(8, device="cuda")
    ipc_memory.send(tensor.raw_storage)
    forebay.synchronize("cuda")
    assert not ipc_memory.send(tensor.raw_storage).event_sync_required
    stream = forebay.Stream("cuda")
    stream.queue.call(lambda: gate.wait(20))
    assert not ipc_memory.send(tensor.raw_storage).event_sync_required  # the stream was not recorded as a user
    with stream:
        assert ipc_memory.send(tensor.raw_storage).event_sync_required


def test_send_orders_after_allocating_stream(emulated, gate):
    """A multiprocessing.Queue sends from another thread."""
    stream = forebay.Stream("cuda")
    with stream:
        tensor = forebay.zeros(8, device="cuda")
        ipc_memory.send(tensor.raw_storage)
        stream.queue.call(lambda: gate.wait(20))
    assert ipc_memory.send(tensor.raw_storage).event_sync_required


@pytest.mark.parametrize("settings", ["expandable_segments:True"])
def test_expandable_segments_cannot_be_sent(emulated, settings):
    forebay.memory.set_allocator_settings(settings)
    try:
        tensor = forebay.zeros(8, device="cuda")
        with pytest.raises(
            Unsupported, match=r"^Tensors allocated with expandable_segments:True cannot be shared between"
        ):
            ipc_memory.send(tensor.raw_storage)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")


def test_ipc_handle_is_unsupported_without_shares(fake):
    with pytest.raises(Unsupported) as caught:
        forebay.Event("fake", interprocess=True).ipc_handle()
    assert caught.value.ability == "Shares"


HANDLE = struct.Struct("<4sIIQQQ16s12x")


def with_changes(handle, **changes):
    return shared_file.Handle(*HANDLE.unpack(handle))._replace(**changes).pack()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": b"0123456789abcdef"}, "no longer shares this memory, or never did"),
        ({"number": 1}, "no longer shares this memory, or never did"),  # standard output
        ({"number": 99999}, "no longer shares this memory, or never did"),
        ({"process": (1 << 22) - 1}, "which shared the memory, has ended"),
        ({"process": 0}, "which shared the memory, has ended"),
        ({"purpose": b"xxxx"}, "the handle is not valid for this call"),
        ({"nbytes": 4096}, "differs from the handle"),
    ],
)
def test_open_shared_rejects_forged_handles(emulated, changes, words):
    file = SharedFile.create(8192)
    files = descriptors()
    with pytest.raises(DeviceError, match=words) as caught:
        emulated.port.open_shared(with_changes(file.handle(b"psMm"), **changes))
    assert caught.value.code == 400
    assert descriptors() == files
    file.close()
    file.unmap()


def test_open_shared_maps_until_close_shared(emulated):
    file = SharedFile.create(8192)
    handle = file.handle(b"psMm")
    address, nbytes = emulated.port.open_shared(handle)
    assert nbytes == 8192
    assert address != file.address
    file.close()
    with pytest.raises(DeviceError, match="no longer"):
        emulated.port.open_shared(handle)
    emulated.port.close_shared(address)
    for foreign in (address, 0, file.address):
        with pytest.raises(DeviceError, match="not an address that `open_shared` returned"):
            emulated.port.close_shared(foreign)
    file.unmap()


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (data, ForebayError, "cudaIpcEventHandle_t expects byte-like object of size 64, but got")
        for data in (b"", b"x" * 63, b"x" * 65, "x" * 64)
    ]
    + [(data, TypeError, r"argument 'ipc_handle' \(position 2\) must be str, not ") for data in (None, 64)],
)
def test_handles_of_wrong_type_or_size_are_rejected(emulated, data, error, words):
    with pytest.raises(error, match=words):
        forebay.Event.from_ipc_handle("cuda:0", data)
    with pytest.raises(DeviceError, match="a handle has 64 bytes"):
        emulated.port.open_shared(data)


def test_own_event_handle_is_rejected(emulated):
    event = forebay.Event("cuda", interprocess=True)
    with pytest.raises(DeviceError, match="invalid device context") as caught:
        forebay.Event.from_ipc_handle("cuda:0", event.ipc_handle())
    assert caught.value.code == 201


@pytest.mark.parametrize("flags", [{}, {"enable_timing": True}, {"enable_timing": True, "interprocess": True}])
def test_events_without_interprocess_flag_have_no_handle(emulated, flags):
    event = forebay.Event("cuda", **flags)
    with pytest.raises(DeviceError, match="CUDA error: invalid argument") as caught:
        event.ipc_handle()
    assert caught.value.code == 1
    if flags.get("interprocess"):
        with pytest.raises(DeviceError, match="invalid argument"):
            event.record()


def test_event_error_names_the_device_kind():
    with forebay.emulate("mtia"), pytest.raises(DeviceError, match="MTIA error: invalid argument") as caught:
        forebay.Event("mtia").ipc_handle()
    assert "nvidia" not in str(caught.value)


def test_interprocess_event_can_be_recorded_and_waited_for(emulated, gate):
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


def test_interprocess_events_share_descriptors(emulated):
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


def test_stopped_emulation_releases_sent_memory():
    files = descriptors()
    for _ in range(20):
        with forebay.emulate("cuda"):
            ipc_memory.send(forebay.zeros(8, device="cuda").raw_storage)
    assert ipc_memory.outstanding_count() == 0
    assert descriptors() <= files + 1  # the shared page of events


def test_numpy_zeros_in_shared_segment_are_zero():
    """Zeroing by MADV_DONTNEED, as for other NumPy zeros, does not work on shared pages."""
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


def test_plain_pickle_copies(emulated):
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


def test_borrowed_memory_is_pickled_as_copy():
    tensor = forebay.from_numpy(np.arange(3.0))
    again = ForkingPickler.loads(ForkingPickler.dumps(tensor))
    assert again.tolist() == [0, 1, 2]
    assert again.data_ptr() != tensor.data_ptr()


def test_uncached_memory_can_be_sent(emulated):
    with forebay.memory.caching_allocator_disabled():
        tensor = forebay.zeros(1000, device="cuda")
        sent = ipc_memory.send(tensor.raw_storage)
    assert sent.offset == 0
    del tensor
    ipc_memory.reset_kind("cuda")


@pytest.mark.slow
def test_sent_memory_stays_guarded():
    program = """
        import ctypes, forebay
        from forebay.runtime.memory import ipc_memory as sharing
        with forebay.emulate("cuda", guard=True):
            tensor = forebay.full((1000,), 3.0, device="cuda")
            sharing.send(tensor.raw_storage)
            assert tensor.tolist() == [3.0] * 1000
            print("shared", flush=True)
            ctypes.string_at(tensor.data_ptr(), 1)
    """
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "shared\n", done.stderr
    assert done.returncode == -signal.SIGSEGV
    assert "cuda:0: the host touched device memory outside queued work" in done.stderr


@pytest.fixture
def send_to_other(emulated, monkeypatch):
    """Send to the device cuda:1 of this process, which can open the leases here, as only another process can."""

    def open_lease(handle, device):
        return next(lease for lease in ipc_memory._outstanding if lease.handle == handle)

    def send(tensor):
        return ipc_memory.send(tensor.raw_storage)._replace(device=forebay.device("cuda:1"))

    monkeypatch.setattr(Lease, "open", open_lease)
    yield send
    ipc_memory.reset_kind("cuda")


def test_received_memory_is_the_senders_and_is_returned_when_deleted(send_to_other):
    tensor = forebay.tensor(np.arange(100, dtype="i4"), device="cuda:0")
    received = ipc_memory.receive(sent := send_to_other(tensor))
    assert (received.nbytes, ipc_memory.was_received(received)) == (400, True)
    assert received.address != tensor.data_ptr()
    back, queue = np.zeros(100, "i4"), opened_for("cuda:1").default_queue
    queue.copy(back.ctypes.data, received.address, 400)
    queue.wait(queue.signal())
    assert back.tolist() == [*range(100)]
    with pytest.raises(ForebayError, match="Attempted to send CUDA tensor received from another process"):
        ipc_memory.send(received)
    with pytest.raises(WrongState, match="this handle was received already"):
        ipc_memory.receive(sent)
    ipc_memory.collect()
    assert ipc_memory.outstanding_count() == 1
    del received
    ipc_memory.collect()
    assert ipc_memory.outstanding_count() == 0


def test_stream_of_the_receiver_waits_for_the_sender(send_to_other, gate):
    tensor, stream = forebay.zeros(100, dtype="uint8", device="cuda:0"), forebay.Stream("cuda:0")
    ipc_memory.send(tensor.raw_storage)
    forebay.synchronize("cuda:0")
    with stream:
        stream.queue.call(lambda: gate.wait(20))
        tensor.fill_(3)
        received = ipc_memory.receive(send_to_other(tensor))
    back, queue = np.zeros(100, np.uint8), forebay.current_stream("cuda:1").queue
    queue.copy(back.ctypes.data, received.address, 100)
    assert not queue.idle()
    gate.set()
    queue.wait(queue.signal())
    assert back.tolist() == [3] * 100


@pytest.mark.parametrize("changes", [{"offset": -1}, {"offset": 1 << 40}, {"nbytes": 0}, {"nbytes": 1 << 40}], ids=str)
def test_memory_outside_its_segment_is_not_received(send_to_other, changes):
    sent = send_to_other(forebay.zeros(8, device="cuda:0"))
    with pytest.raises(DeviceError, match="the memory is not within its segment") as caught:
        ipc_memory.receive(sent._replace(**changes))
    assert caught.value.code == 1
    assert ipc_memory.receive(sent).nbytes == 32  # the lease is still there


def test_empty_memory_needs_no_lease(emulated):
    sent = ipc_memory.send(forebay.zeros(0, device="cuda:1").raw_storage)
    assert (sent.handle, sent.lease, ipc_memory.outstanding_count()) == (None, None, 0)
    received = ipc_memory.receive(sent)
    assert (str(received.opened.device), received.nbytes, ipc_memory.was_received(received)) == ("cuda:1", 0, False)


def test_memory_of_others_cannot_be_sent():
    tensor = forebay.from_numpy(np.arange(3.0))
    with pytest.raises(Unsupported, match="memory that cpu does not own cannot be shared") as caught:
        ipc_memory.send(tensor.raw_storage)
    assert caught.value.ability == "Shares"


def test_error_of_a_port_that_cannot_share_is_kept(emulated, monkeypatch):
    def share(address):
        raise Unsupported("not on this hardware", ability="Shares")

    monkeypatch.setattr(emulated.port, "share", share)
    with pytest.raises(Unsupported, match=r"^not on this hardware"):
        ipc_memory.send(forebay.zeros(8, device="cuda").raw_storage)
    assert ipc_memory.outstanding_count() == 0


def test_event_of_a_lease_follows_both_streams(emulated):
    """The stream that allocated the memory and the current stream."""
    gates = [threading.Event() for _ in range(2)]
    allocating, here = forebay.Stream("cuda"), forebay.Stream("cuda")
    with allocating:
        tensor = forebay.zeros(8, device="cuda")
        ipc_memory.send(tensor.raw_storage)
    forebay.synchronize("cuda")
    for stream, gate in zip((allocating, here), gates, strict=True):
        stream.queue.call(lambda gate=gate: gate.wait(20))
    with here:
        sent = ipc_memory.send(tensor.raw_storage)
    lease = [*ipc_memory._outstanding][-1]
    gates[0].set()
    assert not lease.reached(sent.event)
    gates[1].set()
    forebay.synchronize("cuda")
    assert lease.reached(sent.event)


def test_received_memory_is_returned_after_the_work_of_all_its_streams(emulated):
    gates, streams = [threading.Event() for _ in range(2)], [forebay.Stream("cuda") for _ in range(2)]
    for stream, gate in zip(streams, gates, strict=True):
        stream.queue.call(lambda gate=gate: gate.wait(20))
    lease = Lease.create()
    assert lease.borrow()
    memory = ipc_memory._ReceivedMemory(emulated, object(), lease, streams[0].handle)
    memory.record_stream(streams[1].handle)
    del memory
    for gate in gates:
        assert not lease.is_over()
        gate.set()
    forebay.synchronize("cuda")
    assert lease.is_over()


def test_forked_child_returns_no_memory_of_its_parent(emulated):
    lease = Lease.create()
    assert lease.borrow()
    memory = ipc_memory._ReceivedMemory(emulated, object(), lease, 0)
    memory.process += 1
    del memory
    assert not lease.is_over()


def test_memory_that_cannot_be_returned_warns_once(emulated):
    class Broken:
        def return_memory(self, queue=None):
            raise DeviceError("lost")

    memory = ipc_memory._ReceivedMemory(emulated, object(), Broken(), 0)
    with pytest.warns(
        forebay.ForebayWarning, match="memory of another process could not be returned: .*lost"
    ) as caught:
        del memory
    assert len(caught) == 1


class SharingPort:
    """A port whose segments of other processes are numbers."""

    def __init__(self, error=None):
        self.opened, self.closed, self.error = 0, [], error

    def open_shared(self, handle):
        self.opened += 1
        return self.opened, 4096

    def close_shared(self, address):
        self.closed.append(address)
        if self.error is not None:
            raise self.error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("error", [None, WrongState("closed"), DeviceError("invalid argument")], ids=repr)
def test_deleted_mapping_is_unmapped_unless_the_port_is_closed(error):
    port = SharingPort(error)
    mapping = ipc_memory._Mapping(port, b"")
    del mapping
    assert port.closed == [1]


def test_mapping_that_cannot_be_unmapped_warns_once():
    mapping = ipc_memory._Mapping(SharingPort(Unsupported("no", ability="Shares")), b"")
    with pytest.warns(forebay.ForebayWarning, match="could not be unmapped: no") as caught:
        del mapping
    assert len(caught) == 1


def test_forked_child_does_not_unmap_for_its_parent():
    port = SharingPort()
    mapping = ipc_memory._Mapping(port, b"")
    mapping.process += 1
    del mapping
    assert port.closed == []


def test_least_recently_used_mappings_are_unmapped(emulated, monkeypatch):
    port = SharingPort()
    monkeypatch.setattr(ipc_memory, "sharing_port", lambda opened: port)
    for number in (*range(8), 0, 8, 9):
        assert ipc_memory._get_mapping(emulated, bytes([number])).nbytes == 4096
    assert port.opened == 10
    assert port.closed == [2, 3]  # not the first, which was used again
    ipc_memory.collect()
    assert sorted(port.closed) == [*range(1, 11)]


def test_capture_forbids_sending_and_interprocess_events(emulated):
    """A graph cannot replay work with another process: CUDA error 900, and the capture is broken."""
    tensor, event = forebay.zeros(8, device="cuda"), forebay.Event("cuda", interprocess=True)
    for use in (event.record, lambda: ipc_memory.send(tensor.raw_storage)):
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        with cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
            with pytest.raises(DeviceError, match="not permitted when stream is capturing") as caught:
                use()
            assert caught.value.code == 900
            with pytest.raises(DeviceError):
                graph.capture_end()
