"""Memory and events of two and three real processes: passed, waited for, and left behind by who ends early.

Each scene is two programs, which makes the lines.
"""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared through memfd_create")

BEGIN = """
import gc, os, signal, sys, threading, time
import multiprocessing as mp
import numpy as np

os.environ["FOREBAY_EMULATE"] = "cuda:2@h200"
import forebay
import forebay.cuda as cuda
from forebay.runtime.memory import ipc_memory as sharing

MIB, LIMIT = 1 << 20, 20
context = mp.get_context(sys.argv[1] if len(sys.argv) > 1 else "spawn")
parent = mp.parent_process()

def held(stream):
    "Stops the stream until the gate is set."
    gate = threading.Event()
    stream.queue.call(lambda: gate.wait(LIMIT) or os._exit(9))
    return gate

def shared_segment():
    "Small tensors come from a segment that is shared already, which waits for nothing."
    tensor = forebay.zeros(1, device="cuda")
    sharing.send(tensor.storage)
    return tensor

def files():
    return sorted(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))

def get(pipe):
    assert pipe.poll(LIMIT), "nothing came"
    return pipe.recv()

def put(pipe, thing):
    pipe.send_bytes(mp.reduction.ForkingPickler.dumps(thing))

def start(target, *arguments):
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    return process, here

def ends(process, code=0):
    process.join(LIMIT)
    assert process.exitcode == code, process.exitcode

def settles(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)

allocated = forebay.memory.memory_allocated

def out():
    cuda.ipc_collect()
    return sharing.sent_count()
"""
END = """
if __name__ == "__main__":
    main()
    print("done")
"""


def passes(runner, source, *arguments):
    runner.write(BEGIN + source + END)
    done = runner.command("-W", "error", "script.py", *arguments)
    assert (done.status, done.out, done.err) == (0, "done\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_both_see_one_memory(runner, method):
    """Through a Queue, whose own thread sends: views, two devices, nothing copied, all of it back in the end."""
    passes(
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
    assert sharing.sent_count() == 3
    pipe.send("seen")
    ends(process)
    assert out() == 0
    del whole, far, tensor
    gc.collect()
    assert allocated("cuda:0") == allocated("cuda:1") == 0
""",
        method,
    )


def test_the_receivers_stream_waits_for_the_senders(runner):
    passes(
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
        gate = held(stream)
        tensor = forebay.empty(1000, dtype=forebay.uint8, device="cuda").fill_(4)
        put(pipe, tensor)
    assert get(pipe) == "queued"
    gate.set()
    ends(process)
    cuda.synchronize()
""",
    )


def test_memory_stays_until_the_receiver_is_done(runner):
    """Its last tensor goes while its stream still reads: only then the sender's allocator has the memory again."""
    passes(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    stream = cuda.current_stream()
    gate = held(stream)
    copy = tensor.clone()
    del tensor
    gc.collect()
    put(pipe, "let go")
    assert get(pipe) == "still there"
    gate.set()
    assert copy.tolist() == [3.0] * 1000
    put(pipe, "read")
    assert get(pipe) == "bye"

def main():
    process, pipe = start(child)
    tensor = forebay.full((1000,), 3.0, device="cuda")
    put(pipe, tensor)
    del tensor
    assert get(pipe) == "let go"
    assert out() == 1 and allocated("cuda:0") == 4096
    put(pipe, "still there")
    assert get(pipe) == "read"
    settles(lambda: out() == 0)
    assert allocated("cuda:0") == 0
    put(pipe, "bye")
    ends(process)
""",
    )


def test_an_allocator_with_nothing_left_asks_what_came_back(runner):
    passes(
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
    assert sharing.sent_count() == 0
    put(pipe, "bye")
    ends(process)
""",
    )


def test_a_receiver_that_is_killed_gives_back(runner):
    passes(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    held(cuda.current_stream())
    tensor.zero_()
    put(pipe, "has it")
    time.sleep(LIMIT)

def main():
    process, pipe = start(child)
    tensor = forebay.zeros(1000, device="cuda")
    put(pipe, tensor)
    del tensor
    assert get(pipe) == "has it"
    assert out() == 1
    process.kill()
    settles(lambda: out() == 0)  # before anybody has waited for it
    ends(process, -signal.SIGKILL)
    assert allocated("cuda:0") == 0
""",
    )


def test_a_sender_that_is_killed(runner):
    """Work that waits for it fails, what was received stays readable, and what was not is refused."""
    passes(
        runner,
        """
def child(pipe):
    kept = shared_segment()
    gate = held(cuda.current_stream())
    tensors = [forebay.empty(1000, dtype=forebay.uint8, device=f"cuda:{index}").fill_(1) for index in (0, 1)]
    event = cuda.Event(interprocess=True)
    event.record()
    for thing in (*tensors, event):
        put(pipe, thing)
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
            assert error.code == 130 and "ended before it got there" in str(error), error
        else:
            raise AssertionError(wait)
    assert tensor.tolist() == [0] * 1000  # the sender never came to fill it
    ends(process, -signal.SIGKILL)
    try:
        mp.reduction.ForkingPickler.loads(unread)
    except forebay.DeviceError as error:
        assert "is gone" in str(error), error
    else:
        raise AssertionError
    assert not event.query()
""",
    )


def test_a_sender_that_leaves_first(runner):
    """What was received outlives it, as does the event."""
    passes(
        runner,
        """
def child(pipe):
    put(pipe, forebay.full((1000,), 6.0, device="cuda"))
    event = cuda.Event(interprocess=True)
    event.record()
    put(pipe, event)
    assert get(pipe) == "both are here"
    cuda.synchronize()

def main():
    process, pipe = start(child)
    tensor, event = get(pipe), get(pipe)
    put(pipe, "both are here")
    ends(process)
    assert tensor.tolist() == [6.0] * 1000
    event.synchronize()
    assert event.query()
    event.wait()
    cuda.synchronize()
    tensor.fill_(7)
    assert tensor.tolist() == [7.0] * 1000
""",
    )


def test_an_event_goes_both_ways(runner):
    passes(
        runner,
        """
def child(pipe):
    event = get(pipe)
    assert isinstance(event, cuda.Event) and event.interprocess and str(event.device) == "cuda:0"
    assert not event.query()
    event.wait()
    mine = cuda.Event()
    mine.record()
    assert not mine.query()
    put(pipe, "waits")
    mine.synchronize()
    gate = held(cuda.current_stream())
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
    gate = held(cuda.current_stream())
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
    [one.ipc_handle() for one in other]  # all slots of before are used anew
    put(pipe, "dropped")
    ends(process)
""",
    )


def test_a_wait_ends_with_control_c(runner):
    passes(
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
    gate = held(cuda.current_stream())
    event.record()
    put(pipe, event)
    assert get(pipe) == "waits"
    os.kill(process.pid, signal.SIGINT)
    assert get(pipe) == "interrupted"
    gate.set()
    ends(process)
""",
    )


def test_refusals(runner):
    """What CUDA refuses, and PyTorch: one's own handle, one that was received already, passing it on."""
    passes(
        runner,
        """
def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)

def child(pipe):
    tensor = get(pipe)
    refused(RuntimeError, "Attempted to send CUDA tensor received from another process", lambda: put(pipe, tensor))
    put(pipe, tensor.clone())
    data = get(pipe)
    first = mp.reduction.ForkingPickler.loads(data)
    refused(forebay.WrongState, "received already", lambda: mp.reduction.ForkingPickler.loads(data))
    put(pipe, "done")

def main():
    process, pipe = start(child)
    tensor = forebay.full((3,), 1.0, device="cuda")
    put(pipe, tensor)
    assert get(pipe).tolist() == [1.0] * 3
    data = bytes(mp.reduction.ForkingPickler.dumps(tensor))
    refused(forebay.DeviceError, "invalid device context", lambda: mp.reduction.ForkingPickler.loads(data))
    put(pipe, data)
    assert get(pipe) == "done"
    ends(process)
""",
    )


def test_forked_children_leave_alone_what_is_their_parents(runner):
    """Both the sender and the receiver fork, and the children drop all they know."""
    passes(
        runner,
        """
def fork_and_drop(*things):
    child = os.fork()
    if not child:
        del things
        sharing.collect()
        gc.collect()
        os._exit(sharing.sent_count())
    assert os.waitpid(child, 0)[1] == 0

def child(pipe):
    tensor = get(pipe)
    fork_and_drop(tensor)
    put(pipe, "forked")
    assert get(pipe) == "still lent"
    assert tensor.tolist() == [2.0] * 3
    put(pipe, "read")

def main():
    process, pipe = start(child)
    tensor = forebay.full((3,), 2.0, device="cuda")
    put(pipe, tensor)
    fork_and_drop()
    assert get(pipe) == "forked"
    assert out() == 1
    put(pipe, "still lent")
    assert get(pipe) == "read"
    ends(process)
    assert out() == 0
""",
    )


def test_thousands_of_handles_leave_nothing_behind(runner):
    passes(
        runner,
        """
COUNT = 3000

def child(pipe):
    get(pipe), put(pipe, "warm")
    before = files()
    for number in range(COUNT):
        tensor = get(pipe)
        assert tensor.item() == number
        put(pipe, "ok")
    event = get(pipe)
    del tensor, event
    sharing.collect()
    gc.collect()
    after = files()
    assert len(after[0]) <= len(before[0]) and after[1] == before[1], (before, after)

def main():
    process, pipe = start(child)
    put(pipe, forebay.full((1,), 1.0, device="cuda"))
    assert get(pipe) == "warm"
    before = files()
    for number in range(COUNT):
        put(pipe, forebay.full((1,), float(number), device="cuda"))
        assert get(pipe) == "ok"
        assert sharing.sent_count() <= 130
    put(pipe, cuda.Event(interprocess=True))
    ends(process)
    assert out() == 0
    assert len(files()[0]) <= len(before[0]) and files()[1] == before[1], (before, files())
    assert allocated("cuda:0") == 0
    forebay.memory.empty_cache("cuda:0")
    assert len(files()[0]) == len(before[0]) - 1  # the segment's
""",
    )


def test_a_ring_of_three(runner):
    """Each adds one and passes a copy on, for a second; nobody waits on the host for a stream."""
    passes(
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
    pipes = [context.Pipe(duplex=False) for _ in range(3)]  # receives, sends
    others = [start(child, pipes[number][0], pipes[(number + 1) % 3][1])[0] for number in (1, 2)]
    put(pipes[1][1], forebay.tensor(np.array([0, 5], dtype="i8"), device="cuda"))
    count = ring(pipes[0][0], pipes[1][1], 1.5)
    for process in others:
        ends(process)
    assert count > 100, count
    assert out() == 0
""",
    )


def test_the_host_device_shares_too_and_a_forked_child_has_its_own(runner):
    passes(
        runner,
        """
def child(pipe):
    tensor = get(pipe)
    tensor.numpy()[:] = 8
    put(pipe, "written")
    assert get(pipe) == "bye"

def main():
    tensor = forebay.full((1000,), 1.0, device="host:0")
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
    ends(process)
""",
    )


def test_the_guides_example(runner, root):
    guide = (root / "docs/how-to/share-between-processes.md").read_text()
    example = guide.split("```python\n")[1].split("```")[0]
    done = runner.python(example)
    assert (done.status, done.out, done.err) == (0, "[[42.0, 42.0, 42.0], [42.0, 42.0, 42.0]]\n", "")
