"""Shared memory between two processes: sending a tensor, compared with a copy through a pipe, and shared events."""

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
HANDSHAKES = 20  # both processes spin, so load on the machine slows them down
MIB = 1 << 20


def reply(pipe: Connection) -> None:
    """Reply to each object with a byte. For a pair of events, record the second after each recording of the first."""
    with forebay.emulate("cuda"):
        while (value := pipe.recv()) is not None:
            pipe.send_bytes(b".")
            if isinstance(value, tuple):
                first, second = value
                recording = 0
                for _ in range(HANDSHAKES * REPETITIONS):
                    while first.shared.mark.last() == recording:
                        pass
                    recording = first.shared.mark.last()
                    first.synchronize()
                    second.record()
            del value


def microseconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            call()
        times.append((time.perf_counter_ns() - start) / rounds / 1000)
    return median(times)


def main() -> None:
    own_end, child_end = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=reply, args=(child_end,), daemon=True)
    process.start()
    with forebay.emulate("cuda"):

        def send_and_wait(value: object, rounds: int) -> float:
            def round_trip() -> None:
                own_end.send(value)
                own_end.recv_bytes()

            round_trip()
            return microseconds(round_trip, rounds)

        result = table("Round trip to another process, µs", "size", "shared tensor", "NumPy array through the pipe")
        for nbytes in (4096, MIB, 64 * MIB):
            tensor = forebay.zeros(nbytes, dtype=forebay.uint8, device="cuda")
            forebay.synchronize("cuda")
            rounds = ROUNDS if nbytes <= MIB else 5
            copied = send_and_wait(np.zeros(nbytes, np.uint8), rounds)
            result.add_row(f"{nbytes >> 10} KiB", f"{send_and_wait(tensor, ROUNDS):.0f}", f"{copied:.0f}")
        result.add_row("one byte", "", f"{send_and_wait(b'.', ROUNDS):.0f}")
        show(result)

        tensor = forebay.zeros(4096, device="cuda")
        result = table("One call in one process", "call", "µs")
        result.add_row(
            "send (share, lease, no event)", f"{microseconds(lambda: ipc_memory.send(tensor.raw_storage)):.1f}"
        )
        event, plain = forebay.Event("cuda", interprocess=True), forebay.Event("cuda")
        event.record()
        result.add_row("Event.record", f"{microseconds(plain.record):.2f}")
        result.add_row("Event.record, interprocess", f"{microseconds(event.record):.2f}")
        show(result)
        first, second = (forebay.Event("cuda", interprocess=True) for _ in range(2))
        second.ipc_handle()
        assert second.shared is not None
        mark, recording = second.shared.mark, 0

        def handshake() -> None:
            nonlocal recording
            first.record()
            while mark.last() == recording:
                pass
            recording = mark.last()
            second.synchronize()

        own_end.send((first, second))
        own_end.recv_bytes()
        result = table("Handshake of two streams in two processes", "operation", "µs")
        result.add_row("record, remote wait, remote record, wait", f"{microseconds(handshake, HANDSHAKES):.0f}")
        show(result)
        own_end.send(None)
    process.join(20)


if __name__ == "__main__":
    main()
