"""Memory and events shared between processes: transfer, ordering, and processes that exit early."""

from __future__ import annotations

import os

import pytest
from support import software_driver

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared through memfd_create")

PROLOGUE = """
import gc, os, signal, sys, threading, time
import multiprocessing as mp
import numpy as np

import forebay
import forebay.cuda as cuda
from forebay.runtime.memory import ipc_memory

MIB, LIMIT = 1 << 20, 20
context = mp.get_context(sys.argv[1] if len(sys.argv) > 1 else "spawn")
parent = mp.parent_process()

def block(stream):
    "Block the stream until the returned gate is set."
    gate = threading.Event()
    stream.queue.call(lambda: gate.wait(LIMIT) or os._exit(9))
    return gate

def shared_segment():
    "Share a segment; later small tensors in it can be sent without a wait."
    tensor = forebay.zeros(1, device="cuda")
    ipc_memory.send(tensor.raw_storage)
    return tensor

def files():
    shared = [each for each in os.listdir("/dev/shm") if "forebay" in each]  # other programs have files there, too
    return sorted(os.listdir("/proc/self/fd")), sorted(shared)

def get(pipe):
    assert pipe.poll(LIMIT), "nothing received"
    return pipe.recv()

def put(pipe, value):
    pipe.send_bytes(mp.reduction.ForkingPickler.dumps(value))

def start(target, *arguments):
    own_end, child_end = context.Pipe()
    process = context.Process(target=target, args=(child_end, *arguments), daemon=True)
    process.start()
    child_end.close()
    return process, own_end

def join(process, code=0):
    process.join(LIMIT)
    assert process.exitcode == code, process.exitcode

def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.001)

allocated = forebay.memory.memory_allocated

def outstanding_count():
    cuda.ipc_collect()
    return ipc_memory.outstanding_count()
"""
EPILOGUE = """
if __name__ == "__main__":
    main()
    print("done")
"""


@pytest.fixture(params=["emulated", "software driver"])
def runner(runner, request, monkeypatch):
    """A runner of programs with emulated GPUs, or with those of the software driver."""
    if request.param == "emulated":
        monkeypatch.setenv("FOREBAY_EMULATE", "cuda:2@h200")
    else:
        for name, value in software_driver.environment(SOFTCUDA_MACHINE=str(runner.folder)).items():
            monkeypatch.setenv(name, value)
    return runner


def run_successfully(runner, source, *arguments):
    runner.write(PROLOGUE + source + EPILOGUE)
    done = runner.command("-W", "error", "script.py", *arguments)
    assert (done.status, done.out, done.err) == (0, "done\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_share_memory_without_copies(runner, method):
    """Send views and tensors of two devices through a Queue, whose own thread sends, and collect them at the end."""
    run_successfully(
        runner,
        """
def child(pipe, queue):
    whole, part, far, empty = (queue.get(timeout=LIMIT) for _ in range(4))
    assert whole.tolist() == [[0, 1, 2], [3, 4, 5]] and part.tolist() == [1, 4]
    assert part.shape == (2,) and part.stride() == (3,) and not part.is_contiguous()
    assert str(far.device) == "cuda:1" and far.tolist() == [2.5]
    assert empty.shape == (0, 3) and empty.numel() == 0
    part.fill_(9)
    cuda.synchronize()
    assert whole.tolist() == [[0, 9, 2], [3, 9, 5]]
    put(pipe, "written")
    assert get(pipe) == "seen"

def main():
    queue = context.Queue()
    process, pipe = start(child, queue)
    whole = forebay.tensor(np.arange(6, dtype="i4").reshape(2, 3), device="cuda:0")
    far = forebay.full((1,), 2.5, device="cuda:1")
    for tensor in (whole, whole[:, 1], far, forebay.empty(0, 3, device="cuda:0")):
        queue.put(tensor)
    assert get(pipe) == "written"
    assert whole.tolist() == [[0, 9, 2], [3, 9, 5]]
    assert ipc_memory.outstanding_count() == 3
    pipe.send("seen")
    join(process)
    assert outstanding_count() == 0
    del whole, far, tensor
    gc.collect()
    assert allocated("cuda:0") == allocated("cuda:1") == 0
""",
        method,
    )


def test_stream_of_receiver_waits_for_stream_of_sender(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    copy = tensor.clone()
    done = cuda.Event()
    done.record()
    assert not done.query()
    put(pipe, "queued")
    assert copy.tolist() == [4] * 1000

def main():
    process, pipe = start(child)
    stream = cuda.Stream()
    with cuda.stream(stream):
        kept = shared_segment()
        gate = block(stream)
        tensor = forebay.empty(1000, dtype=forebay.uint8, device="cuda").fill_(4)
        put(pipe, tensor)
    assert get(pipe) == "queued"
    gate.set()
    join(process)
    cuda.synchronize()
""",
    )


def test_memory_is_retained_until_the_receiver_has_finished(runner):
    """The receiver deletes its last tensor while its stream still reads the memory."""
    run_successfully(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    stream = cuda.current_stream()
    gate = block(stream)
    copy = tensor.clone()
    del tensor
    gc.collect()
    put(pipe, "deleted")
    assert get(pipe) == "still allocated"
    gate.set()
    assert copy.tolist() == [3.0] * 1000
    put(pipe, "read")
    assert get(pipe) == "bye"

def main():
    process, pipe = start(child)
    tensor = forebay.full((1000,), 3.0, device="cuda")
    put(pipe, tensor)
    del tensor
    assert get(pipe) == "deleted"
    assert outstanding_count() == 1 and allocated("cuda:0") == 4096
    put(pipe, "still allocated")
    assert get(pipe) == "read"
    wait_until(lambda: outstanding_count() == 0)
    assert allocated("cuda:0") == 0
    put(pipe, "bye")
    join(process)
""",
    )


def test_full_allocator_collects_returned_memory(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    get(pipe)
    put(pipe, "read")
    assert get(pipe) == "bye"

def main():
    process, pipe = start(child)
    forebay.memory.set_per_process_memory_fraction(64 * MIB / forebay.memory.mem_get_info("cuda")[1], "cuda")
    tensor = forebay.zeros(48 * MIB, dtype=forebay.uint8, device="cuda")
    put(pipe, tensor)
    del tensor
    assert get(pipe) == "read"
    other = forebay.zeros(48 * MIB, dtype=forebay.uint8, device="cuda")
    assert ipc_memory.outstanding_count() == 0
    put(pipe, "bye")
    join(process)
""",
    )


def test_memory_that_was_returned_can_be_freed(runner):
    """The receiver has closed the segment when the sender gets its memory back, even if work was pending."""
    run_successfully(
        runner,
        """
def child(pipe):
    for blocked in (False, True):
        tensor = get(pipe)
        assert tensor.tolist() == [3] * 1000
        gate = block(cuda.current_stream()) if blocked else None
        copy = tensor.clone()
        del tensor
        put(pipe, "dropped")
        if gate:
            assert get(pipe) == "go on"
            gate.set()
        cuda.synchronize()
        assert copy.tolist() == [3] * 1000
        put(pipe, "synchronized")
    assert get(pipe) == "freed"

def main():
    process, pipe = start(child)
    for blocked in (False, True):
        tensor = forebay.empty(1000, dtype=forebay.uint8, device="cuda").fill_(3)
        put(pipe, tensor)
        del tensor
        assert get(pipe) == "dropped"
        if blocked:
            assert outstanding_count() == 1
            pipe.send("go on")
        assert get(pipe) == "synchronized"
        assert outstanding_count() == 0
        cuda.empty_cache()
        assert cuda.memory_reserved() == 0
    pipe.send("freed")
    join(process)
""",
    )


def test_memory_of_a_killed_receiver_is_returned(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    block(cuda.current_stream())
    tensor.zero_()
    put(pipe, "received")
    time.sleep(LIMIT)

def main():
    process, pipe = start(child)
    tensor = forebay.zeros(1000, device="cuda")
    put(pipe, tensor)
    del tensor
    assert get(pipe) == "received"
    assert outstanding_count() == 1
    process.kill()
    wait_until(lambda: outstanding_count() == 0)  # before the process is joined
    join(process, -signal.SIGKILL)
    assert allocated("cuda:0") == 0
""",
    )


def test_killed_sender_fails_waits_and_unread_handles(runner):
    """Work that waits for the sender fails; received memory stays readable; handles not yet opened are rejected."""
    run_successfully(
        runner,
        """
def child(pipe):
    kept = shared_segment()
    gate = block(cuda.current_stream())
    tensors = [forebay.empty(1000, dtype=forebay.uint8, device=f"cuda:{index}").fill_(1) for index in (0, 1)]
    event = cuda.Event(interprocess=True)
    event.record()
    for value in (*tensors, event):
        put(pipe, value)
    time.sleep(LIMIT)

def main():
    process, pipe = start(child)
    tensor = get(pipe)
    assert pipe.poll(LIMIT)
    unread = pipe.recv_bytes()
    event = get(pipe)
    stream = cuda.Stream()
    event.wait(stream)
    assert not stream.query() and not event.query()
    process.kill()
    for wait in (cuda.current_stream(0).synchronize, stream.synchronize, event.synchronize):
        try:
            wait()
        except forebay.DeviceError as error:
            assert error.code == 130 and "ended before it reached the event" in str(error), error
        else:
            raise AssertionError(wait)
    assert tensor.tolist() == [0] * 1000  # the sender was killed before the fill
    join(process, -signal.SIGKILL)
    try:
        mp.reduction.ForkingPickler.loads(unread)
    except forebay.DeviceError as error:
        assert "has ended" in str(error), error
    else:
        raise AssertionError
    assert not event.query()
""",
    )


def test_received_memory_outlives_the_sender(runner):
    """Received memory and events outlive the sender."""
    run_successfully(
        runner,
        """
def child(pipe):
    put(pipe, forebay.full((1000,), 6.0, device="cuda"))
    event = cuda.Event(interprocess=True)
    event.record()
    put(pipe, event)
    assert get(pipe) == "both received"
    cuda.synchronize()

def main():
    process, pipe = start(child)
    tensor, event = get(pipe), get(pipe)
    put(pipe, "both received")
    join(process)
    assert tensor.tolist() == [6.0] * 1000
    event.synchronize()
    assert event.query()
    event.wait()
    cuda.synchronize()
    tensor.fill_(7)
    assert tensor.tolist() == [7.0] * 1000
""",
    )


def test_event_is_shared_in_both_directions(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    event = get(pipe)
    assert isinstance(event, cuda.Event) and event.interprocess and str(event.device) == "cuda:0"
    assert not event.query()
    event.wait()
    local = cuda.Event()
    local.record()
    assert not local.query()
    put(pipe, "waits")
    local.synchronize()
    gate = block(cuda.current_stream())
    event.record()
    put(pipe, "recorded")
    assert get(pipe) == "seen"
    gate.set()
    event.synchronize()
    assert get(pipe) == "dropped"
    for use in (event.record, event.wait, event.query):
        try:
            use()
        except forebay.DeviceError as error:
            assert error.code == 400 and "has dropped it" in str(error), error
        else:
            raise AssertionError(use)

def main():
    process, pipe = start(child)
    event = cuda.Event(interprocess=True)
    assert event.query() and event.device is None
    event.ipc_handle()
    assert event.query() and str(event.device) == "cuda:0"
    gate = block(cuda.current_stream())
    event.record()
    put(pipe, event)
    assert get(pipe) == "waits"
    gate.set()
    assert get(pipe) == "recorded"
    assert not event.query()
    stream = cuda.Stream()
    event.wait(stream)
    assert not stream.query()
    put(pipe, "seen")
    event.synchronize()
    cuda.synchronize()
    assert event.query()
    del event
    other = [cuda.Event(interprocess=True) for _ in range(2000)]
    [one.ipc_handle() for one in other]  # reuses all slots
    put(pipe, "dropped")
    join(process)
""",
    )


def test_ctrl_c_interrupts_a_wait(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    event = get(pipe)
    try:
        put(pipe, "waits")
        event.synchronize()
    except KeyboardInterrupt:
        put(pipe, "interrupted")

def main():
    process, pipe = start(child)
    event = cuda.Event(interprocess=True)
    gate = block(cuda.current_stream())
    event.record()
    put(pipe, event)
    assert get(pipe) == "waits"
    os.kill(process.pid, signal.SIGINT)
    assert get(pipe) == "interrupted"
    gate.set()
    join(process)
""",
    )


def test_invalid_transfers_are_rejected(runner):
    """Handles of the same process, handles received twice and resending are rejected, as in CUDA and PyTorch."""
    run_successfully(
        runner,
        """
def raises(error_type, message, function):
    try:
        function()
    except error_type as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

def child(pipe):
    tensor = get(pipe)
    raises(RuntimeError, "Attempted to send CUDA tensor received from another process", lambda: put(pipe, tensor))
    put(pipe, tensor.clone())
    data = get(pipe)
    first = mp.reduction.ForkingPickler.loads(data)
    raises(forebay.WrongState, "received already", lambda: mp.reduction.ForkingPickler.loads(data))
    put(pipe, "done")

def main():
    process, pipe = start(child)
    tensor = forebay.full((3,), 1.0, device="cuda")
    put(pipe, tensor)
    assert get(pipe).tolist() == [1.0] * 3
    data = bytes(mp.reduction.ForkingPickler.dumps(tensor))
    raises(forebay.DeviceError, "invalid device context", lambda: mp.reduction.ForkingPickler.loads(data))
    put(pipe, data)
    assert get(pipe) == "done"
    join(process)
""",
    )


def test_forked_children_do_not_return_memory_of_their_parents(runner):
    """The sender and the receiver fork, and the children delete everything that they inherited."""
    run_successfully(
        runner,
        """
def fork_and_delete(*objects):
    child = os.fork()
    if not child:
        del objects
        ipc_memory.collect()
        gc.collect()
        os._exit(ipc_memory.outstanding_count())
    assert os.waitpid(child, 0)[1] == 0

def child(pipe):
    tensor = get(pipe)
    fork_and_delete(tensor)
    put(pipe, "forked")
    assert get(pipe) == "still shared"
    assert tensor.tolist() == [2.0] * 3
    put(pipe, "read")

def main():
    process, pipe = start(child)
    tensor = forebay.full((3,), 2.0, device="cuda")
    put(pipe, tensor)
    fork_and_delete()
    assert get(pipe) == "forked"
    assert outstanding_count() == 1
    put(pipe, "still shared")
    assert get(pipe) == "read"
    join(process)
    assert outstanding_count() == 0
""",
    )


def test_many_transfers_leak_nothing(runner):
    run_successfully(
        runner,
        """
COUNT = 3000

def child(pipe):
    get(pipe), put(pipe, "ready")
    before = files()
    for number in range(COUNT):
        tensor = get(pipe)
        assert tensor.item() == number
        put(pipe, "ok")
    event = get(pipe)
    del tensor, event
    ipc_memory.collect()
    gc.collect()
    after = files()
    assert len(after[0]) <= len(before[0]) and after[1] == before[1], (before, after)

def main():
    process, pipe = start(child)
    put(pipe, forebay.full((1,), 1.0, device="cuda"))
    assert get(pipe) == "ready"
    before = files()
    for number in range(COUNT):
        put(pipe, forebay.full((1,), float(number), device="cuda"))
        assert get(pipe) == "ok"
        assert ipc_memory.outstanding_count() <= 130
    put(pipe, cuda.Event(interprocess=True))
    join(process)
    assert outstanding_count() == 0
    assert len(files()[0]) <= len(before[0]) and files()[1] == before[1], (before, files())
    assert allocated("cuda:0") == 0
    forebay.memory.empty_cache("cuda:0")
    assert len(files()[0]) == len(before[0]) - 1  # of the segment
""",
    )


def test_ring_of_three_processes(runner):
    """Each process adds one and sends a copy to the next for a second, without synchronizing before sending."""
    run_successfully(
        runner,
        """
def child(pipe, inbox, outbox):
    ring(inbox, outbox, None)

def ring(inbox, outbox, seconds):
    count, end = 0, None
    while True:
        tensor = get(inbox)
        end = end or time.monotonic() + (seconds or LIMIT)
        if tensor is None:
            put(outbox, None)
            return count
        step = forebay.tensor(np.array([1, 0], dtype="i8"), device="cuda")
        copy = tensor.clone()
        values = copy.tolist()
        assert values[1] == 5
        count = values[0]
        if time.monotonic() > end:
            put(outbox, None)
            get(inbox)
            return count
        copy[0] = count + 1
        put(outbox, copy)

def main():
    pipes = [context.Pipe(duplex=False) for _ in range(3)]  # (receiving end, sending end)
    others = [start(child, pipes[number][0], pipes[(number + 1) % 3][1])[0] for number in (1, 2)]
    put(pipes[1][1], forebay.tensor(np.array([0, 5], dtype="i8"), device="cuda"))
    count = ring(pipes[0][0], pipes[1][1], 1.5)
    for process in others:
        join(process)
    assert count > 100, count
    assert outstanding_count() == 0
""",
    )


def test_cpu_memory_is_shared_but_not_with_forked_children(runner):
    run_successfully(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    tensor.numpy()[:] = 8
    put(pipe, "written")
    assert get(pipe) == "bye"

def main():
    tensor = forebay.full((1000,), 1.0, device="cpu")
    array = tensor.numpy()
    process, pipe = start(child)
    put(pipe, tensor)
    assert get(pipe) == "written"
    assert array.tolist() == [8.0] * 1000
    forked = os.fork()
    if not forked:
        array[:] = 9
        os._exit(0 if array.tolist() == [9.0] * 1000 else 1)
    assert os.waitpid(forked, 0)[1] == 0
    assert array.tolist() == [8.0] * 1000
    put(pipe, "bye")
    join(process)
""",
    )


def test_example_of_the_guide_runs(runner, root):
    guide = (root / "docs/how-to/share-between-processes.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    done = runner.python(example)
    assert (done.status, done.out, done.err) == (0, "[[42.0, 42.0, 42.0], [42.0, 42.0, 42.0]]\n", "")
