"""Python frames in snapshots: of blocks and segments, and of the entries of the memory history."""

from __future__ import annotations

import warnings
from pathlib import Path

from support.on_oracle import outcome

FRESH_PROCESS = True
MIB = 1 << 20
HERE = Path(__file__).name
CONTEXTS = ("all", "alloc", "state", None)


def names(row):
    """Return the functions of this file in the row's frames; None if it has no frames."""
    if row is None or "frames" not in row:
        return None
    found = [frame["name"] for frame in row["frames"] if Path(frame["filename"]).name == HERE]
    return [name for name in found if name not in ("run", "<lambda>")]  # of the runner


def entries(rows):
    return [[entry["action"], entry["size"], names(entry)] for entry in rows]


def history(cuda):
    return entries(cuda.memory._snapshot()["device_traces"][0])


def shown(rows):
    rows = sorted(rows, key=lambda row: row["total_size"])
    return [
        [row["total_size"], names(row), [[block["size"], block["state"], names(block)] for block in row["blocks"]]]
        for row in rows
    ]


def segments(cuda):
    return shown(cuda.memory._snapshot()["segments"])


def in_each_context(cuda, scene, **named):
    """Return what the function `scene` returns with the history recorded in each context."""
    found = {}
    for context in CONTEXTS:
        cuda.memory._record_memory_history("all", context, "python", clear_history=True, **named)
        found[str(context)] = scene()
        cuda.memory._record_memory_history(None)
        cuda.empty_cache()
    return found


def bytes_of(torch_like, size):
    return torch_like.empty(size, dtype=torch_like.uint8, device="cuda")


def small(torch_like):
    return bytes_of(torch_like, 1000)


def split(torch_like):
    return bytes_of(torch_like, 3 * MIB)


def whole(torch_like):
    return bytes_of(torch_like, 30 * MIB)


def drop(held):
    held.clear()


def empty(cuda):
    cuda.empty_cache()


def blocks_and_segments(cuda, torch_like):
    def scene():
        held = [small(torch_like), whole(torch_like), split(torch_like)]
        found = [segments(cuda)]
        drop(held)
        found.append(segments(cuda))
        empty(cuda)
        return [*found, segments(cuda), history(cuda)]

    return in_each_context(cuda, scene)


def blocks_that_other_streams_used(cuda, torch_like):
    def scene():
        stream = cuda.Stream()
        held = [split(torch_like)]
        held[0].record_stream(stream)
        drop(held)
        cuda.synchronize()
        tensor = whole(torch_like)
        found = history(cuda)
        tensor.record_stream(stream)
        del tensor
        empty(cuda)
        return found, history(cuda)

    return in_each_context(cuda, scene)


def out_of_memory(cuda, torch_like):
    def scene():
        held = [whole(torch_like), split(torch_like)]
        drop(held)
        error = outcome(cuda, bytes_of, torch_like, 1 << 40)["error"]
        return error, history(cuda)

    return in_each_context(cuda, scene)


def memory_released_for_a_request(cuda, torch_like):
    cuda.set_per_process_memory_fraction(0.1)

    def scene():
        held = [whole(torch_like), small(torch_like)]
        drop(held)
        held = [bytes_of(torch_like, 90 * MIB)]
        drop(held)
        return history(cuda)

    return in_each_context(cuda, scene)


def expandable_segments(cuda, torch_like):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda.memory._set_allocator_settings("expandable_segments:True")

    def scene():
        held = [bytes_of(torch_like, 20 * MIB), small(torch_like)]
        found = [segments(cuda)]
        held.append(split(torch_like))
        found.append(segments(cuda))
        drop(held)
        found.append(segments(cuda))
        empty(cuda)
        return [*found, segments(cuda), history(cuda)]

    return in_each_context(cuda, scene)


def private_pool(cuda, torch_like):
    def scene():
        pool = cuda.MemPool()
        with cuda.use_mem_pool(pool):
            held = [whole(torch_like)]
        drop(held)
        del pool
        return history(cuda)

    return in_each_context(cuda, scene)


def pinned_memory(cuda, torch_like):
    def pin():
        return torch_like.empty(1000, pin_memory=True)

    def taken():
        found = cuda.memory._snapshot()
        return shown(found["host_segments"]), entries(found["host_traces"])

    def scene():
        held = [pin()]
        found = [taken()]
        drop(held)
        return [*found, taken()]

    return in_each_context(cuda, scene, record_pinned_host_memory=True)


def later_recording_of_old_blocks(cuda, torch_like):
    held = [small(torch_like), whole(torch_like)]
    cuda.memory._record_memory_history("all", "all", "python")
    found = [segments(cuda)]
    drop(held)
    empty(cuda)
    return found, history(cuda)


def live_blocks_keep_their_frames(cuda, torch_like):
    record = cuda.memory._record_memory_history
    record("all", "all", "python")
    held = [small(torch_like), whole(torch_like)]
    found = []
    for arguments, cleared in ((("all", "alloc"), False), (("all", "all"), True), ((None,), False), ((), False)):
        record(*arguments, clear_history=cleared, **({} if arguments == (None,) else {"stacks": "python"}))
        found.append([segments(cuda), history(cuda)])
    drop(held)
    found.append([segments(cuda), history(cuda)])
    empty(cuda)
    return found, history(cuda)


def blocks_by_address(cuda, torch_like):
    found = []
    for context in CONTEXTS:
        cuda.memory._record_memory_history("all", context, "python")
        tensor = small(torch_like)
        for _ in range(2):
            frames = cuda.memory._allocation_traceback(tensor.data_ptr())
            found.append(names(None if frames is None else {"frames": frames}))
            cuda.memory._record_memory_history(None)
    return found


class Layer:
    def forward(self, torch_like):
        def inner():
            return small(torch_like)

        outer = lambda: [inner() for _ in range(1)]  # noqa: E731 -- its name is shown
        return outer()

    @staticmethod
    def static(torch_like):
        return small(torch_like)


def function_names(cuda, torch_like):
    cuda.memory._record_memory_history("all", "all", "python")

    def generator():
        yield Layer().forward(torch_like)

    held = [Layer.static(torch_like), *generator()]
    return history(cuda), len(held)
