"""Memory history: recording, snapshots, allocation frames, annotations."""

from __future__ import annotations

from support.on_oracle import outcome

MIB = 1 << 20


def record(cuda, torch_like, *arguments, **named):
    """Return a snapshot of two allocations that were recorded with these arguments."""
    memory = cuda.memory
    memory._record_memory_history(*arguments, clear_history=True, **named)
    first = torch_like.empty(1000, dtype=torch_like.uint8, device="cuda")
    second = torch_like.empty(2 * MIB, dtype=torch_like.uint8, device="cuda")
    del first
    snapshot = memory._snapshot()
    memory._record_memory_history(None)
    del second
    return snapshot


def summarized(entries):
    return [[entry["action"], entry["size"], bool(entry.get("frames"))] for entry in entries]


def all_entries(cuda, torch_like):
    snapshot = record(cuda, torch_like, stacks="python")
    return summarized(snapshot["device_traces"][0]), len(snapshot["device_traces"]), sorted(snapshot)


def entries_and_blocks(cuda, torch_like):
    snapshot = record(cuda, torch_like, stacks="python")
    entry, row = snapshot["device_traces"][0][0], snapshot["segments"][0]
    return sorted(entry), sorted(row), sorted(row["blocks"][0]), sorted(entry["frames"][0])


def stacks(cuda, torch_like):
    found = []
    for context in (None, "state", "alloc", "all"):
        snapshot = record(cuda, torch_like, "all", context, "python")
        blocks = [bool(block["frames"]) for row in snapshot["segments"] for block in row["blocks"]]
        found.append([summarized(snapshot["device_traces"][0]), sum(blocks)])
    return found


def newest_entries(cuda, torch_like):
    few = record(cuda, torch_like, max_entries=2, stacks="python")
    one = record(cuda, torch_like, "state", stacks="python")
    return summarized(few["device_traces"][0]), summarized(one["device_traces"][0])


def skipped_actions(cuda, torch_like):
    return summarized(
        record(cuda, torch_like, stacks="python", skip_actions=["alloc", "segment_alloc"])["device_traces"][0]
    )


def legacy_arguments(cuda, torch_like):
    argument_lists = [(True,), (True, False), (True, True, 10), (True, True, 10, True), (False,)]
    found = []
    for arguments in argument_lists:
        snapshot = record(cuda, torch_like, *arguments)
        blocks = [bool(block["frames"]) for row in snapshot["segments"] for block in row["blocks"]]
        found.append([summarized(snapshot["device_traces"][0]), sum(blocks)])
    return found


def invalid_arguments(cuda, torch_like):
    record = cuda.memory._record_memory_history
    return [
        outcome(cuda, record, *arguments, **named)
        for arguments, named in [
            (("foo",), {}),
            (("all", "foo"), {}),
            (("all", "all", "foo"), {}),
            (("all",), {"skip_actions": ["foo"]}),
            ((None,), {"record_pinned_host_memory": True}),
        ]
    ] + [outcome(cuda, record, True, foo=1)["error"], outcome(cuda, record, foo=1)["error"]]


def on_all_devices(cuda, torch_like):
    memory = cuda.memory
    memory._record_memory_history(device=0, stacks="python", clear_history=True)
    there = torch_like.empty(1000, device="cuda:1")
    found = [summarized(trace) for trace in memory._snapshot(0)["device_traces"]]
    memory._record_memory_history(None)
    return found, there.numel()


def snapshot_is_recorded(cuda, torch_like):
    memory = cuda.memory
    memory._record_memory_history(stacks="python", clear_history=True)
    tensor = torch_like.empty(1000, device="cuda")
    traces = [summarized(memory._snapshot()["device_traces"][0]) for _ in range(3)]
    memory._record_memory_history(None)
    return traces, tensor.numel()


def allocation_frames(cuda, torch_like):
    memory = cuda.memory
    before = torch_like.empty(1000, device="cuda")
    memory._record_memory_history(stacks="python")
    tensor = torch_like.empty(1000, device="cuda")
    frames = memory._allocation_traceback(tensor.data_ptr())
    unknown_addresses = [before.data_ptr(), tensor.data_ptr() + 8, 0, -1]
    unknown = [memory._allocation_traceback(address) for address in unknown_addresses]
    address = tensor.data_ptr()
    del tensor
    memory._record_memory_history(None)
    return (
        "allocation_frames" in [frame["name"] for frame in frames],
        unknown,
        memory._allocation_traceback(address),
        outcome(cuda, memory._allocation_traceback, "x")["error"],
    )


def annotations(cuda, torch_like):
    memory = cuda.memory
    memory._record_memory_history(stacks="python", clear_history=True)
    tensor = torch_like.empty(1000, dtype=torch_like.uint8, device="cuda")
    memory._set_memory_metadata({"step": 3})
    other = torch_like.empty(1000, dtype=torch_like.uint8, device="cuda")
    memory._set_memory_metadata("")
    done = outcome(cuda, memory._annotate_tensor, tensor, "weights")
    trace = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    entries = [[entry["action"], entry["size"], entry["user_metadata"]] for entry in trace]
    return done, entries, other.numel()


def empty_annotations(cuda, torch_like):
    annotate = cuda.memory._annotate_tensor
    there = torch_like.empty(10, device="cuda")
    return [
        outcome(cuda, annotate, torch_like.empty(0, device="cuda"), "x")["error"],
        outcome(cuda, annotate, there, 5)["error"],
    ]


def missing_folder(cuda, torch_like):
    return outcome(cuda, cuda.memory._dump_snapshot, "/nowhere/x")


def traces_are_left_out(cuda, torch_like):
    tensor = torch_like.empty(1000, device="cuda")
    return cuda.memory_snapshot(None, False) == cuda.memory_snapshot(), tensor.numel()


def unknown_pools(cuda, torch_like):
    cuda.init()
    return [outcome(cuda, cuda.memory_snapshot, pool) for pool in (5, (1,))]
