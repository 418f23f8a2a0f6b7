"""Python frames in snapshots: of blocks and segments, and of the entries of the memory history."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

from support.on_oracle import outcome

FRESH_PROCESS = True
DIFFERS = {"functions_of_the_library": "with stacks='python', a stack begins with the program's frame"}
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


def first(row):
    """Return the function of the innermost frame if it is the program's, else None."""
    frame = row["frames"][0]
    return frame["name"] if Path(frame["filename"]).name == HERE else None


def first_frames(taken):
    """Return the innermost frame of each entry and block; not of entries by `empty_cache`, a function in Python."""
    entries = [entry for entry in taken["device_traces"][0] if entry["action"] not in ("snapshot", "segment_free")]
    blocks = [block for row in taken["segments"] for block in row["blocks"] if block["frames"]]
    return [[entry["action"], first(entry)] for entry in entries], sorted((first(block) for block in blocks), key=str)


def innermost_frames(cuda, torch_like):
    """With stacks="python" they are the program's, as PyTorch's functions are C++ functions."""
    cuda.memory._record_memory_history("all", "all", "python")
    held = [small(torch_like), whole(torch_like), split(torch_like).clone()]
    with cuda.use_mem_pool(pool := cuda.MemPool()):
        held.append(small(torch_like))
    held[0].untyped_storage().resize_(5000)
    found = [first_frames(cuda.memory._snapshot())]
    drop(held)
    del pool
    graph = cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        with cuda.graph(graph):
            held.append(small(torch_like))
    drop(held)
    return [*found, first_frames(cuda.memory._snapshot())]


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor

    def __del__(self):
        self.tensor = None


def innermost_frames_of_frees(cuda, torch_like):
    cuda.memory._record_memory_history("all", "all", "python")
    holder, cycle = Holder(small(torch_like)), Holder(None)
    del holder
    cycle.tensor = [cycle, whole(torch_like)]
    del cycle
    gc.collect()
    return first_frames(cuda.memory._snapshot())


def innermost_frames_of_pinned_memory(cuda, torch_like):
    cuda.memory._record_memory_history("all", "all", "python", record_pinned_host_memory=True)
    held = [torch_like.empty(1000, pin_memory=True)]
    drop(held)
    return [[entry["action"], first(entry)] for entry in cuda.memory._snapshot()["host_traces"]]


def all_frames_begin_in_the_library(cuda, torch_like):
    cuda.memory._record_memory_history("all", "all", "all")
    held = [small(torch_like), split(torch_like)]
    return first_frames(cuda.memory._snapshot())[0], len(held)


def functions_of_the_library(cuda, torch_like):
    cuda.memory._record_memory_history("all", "all", "python")
    address = cuda.caching_allocator_alloc(1000)
    cuda.caching_allocator_delete(address)
    cuda.empty_cache()
    taken = cuda.memory._snapshot()
    return [[entry["action"], entry["frames"][0]["name"]] for entry in taken["device_traces"][0] if entry["frames"]]
