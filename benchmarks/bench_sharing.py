"""Memory between two processes: what it costs to pass a tensor, beside a copy through the pipe, and an event's way."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median

import numpy as np
from measure import REPETITIONS, show, table

import forebay
from forebay.runtime.memory import ipc_memory

ROUNDS = 200
HANDSHAKES = 20  # both processes spin: a machine with other work makes them slow
MIB = 1 << 20


def other_side(pipe: Connection) -> None:
    """Answers each thing with a byte; of two events, records the second whenever the first is reached anew."""
    with forebay.emulate("cuda"):
        while (thing := pipe.recv()) is not None:
            pipe.send_bytes(b".")
            if isinstance(thing, tuple):
                theirs, ours = thing
                word = 0
                for _ in range(HANDSHAKES * REPETITIONS):
                    while theirs.shared.mark.last() == word:
                        pass
                    word = theirs.shared.mark.last()
                    theirs.synchronize()
                    ours.record()
            del thing


def microseconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            call()
        times.append((time.perf_counter_ns() - start) / rounds / 1000)
    return median(times)


def main() -> None:
    here, there = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=other_side, args=(there,), daemon=True)
    process.start()
    with forebay.emulate("cuda"):

        def passed(thing: object, rounds: int) -> float:
            def there_and_back() -> None:
                here.send(thing)
                here.recv_bytes()

            there_and_back()
            return microseconds(there_and_back, rounds)

        made = table("To another process and an answer, µs", "what", "shared tensor", "NumPy array through the pipe")
        for nbytes in (4096, MIB, 64 * MIB):
            tensor = forebay.zeros(nbytes, dtype=forebay.uint8, device="cuda")
            forebay.synchronize("cuda")
            rounds = ROUNDS if nbytes <= MIB else 5
            copied = passed(np.zeros(nbytes, np.uint8), rounds)
            made.add_row(f"{nbytes >> 10} KiB", f"{passed(tensor, ROUNDS):.0f}", f"{copied:.0f}")
        made.add_row("one byte", "", f"{passed(b'.', ROUNDS):.0f}")
        show(made)

        tensor = forebay.zeros(4096, device="cuda")
        made = table("One call in one process", "what", "µs")
        made.add_row("send (share, lease, no event)", f"{microseconds(lambda: ipc_memory.send(tensor.storage)):.1f}")
        event, plain = forebay.Event("cuda", interprocess=True), forebay.Event("cuda")
        event.record()
        made.add_row("Event.record", f"{microseconds(plain.record):.2f}")
        made.add_row("Event.record, interprocess", f"{microseconds(event.record):.2f}")
        show(made)
        first, second = (forebay.Event("cuda", interprocess=True) for _ in range(2))
        second.ipc_handle()
        assert second.shared is not None
        mark, word = second.shared.mark, 0

        def to_and_fro() -> None:
            nonlocal word
            first.record()
            while mark.last() == word:
                pass
            word = mark.last()
            second.synchronize()

        here.send((first, second))
        here.recv_bytes()
        made = table("A stream of one process, a stream of the other, and back", "what", "µs")
        made.add_row("record, wait there, record there, wait", f"{microseconds(to_and_fro, HANDSHAKES):.0f}")
        show(made)
        here.send(None)
    process.join(20)


if __name__ == "__main__":
    main()
