"""Metadata of history entries across recordings."""

from __future__ import annotations


def metadata(cuda):
    entries = cuda.memory._snapshot()["device_traces"][0]
    return [[entry["action"], entry["user_metadata"]] for entry in entries]


def snapshot_entries_have_current_metadata(cuda, torch_like):
    """A recording that begins with snapshots has no metadata of the one before it."""
    cuda.memory._set_memory_metadata("first")
    cuda.memory._record_memory_history(stacks="python")
    kept = torch_like.empty(10, device="cuda")
    found = [metadata(cuda), metadata(cuda)]
    cuda.memory._record_memory_history(None)
    cuda.memory._set_memory_metadata("")
    cuda.memory._record_memory_history(stacks="python")
    found += [metadata(cuda), metadata(cuda)]
    cuda.memory._set_memory_metadata("second")
    found += [metadata(cuda), metadata(cuda)]
    del kept
    return [*found, metadata(cuda)]


def recordings_do_not_inherit_metadata(cuda, torch_like):
    """The first entry of a recording is a free that another stream delayed."""
    stream = cuda.Stream()
    cuda.memory._set_memory_metadata("first")
    cuda.memory._record_memory_history(stacks="python")
    used = torch_like.empty(10, device="cuda")
    used.record_stream(stream)
    cuda.memory._record_memory_history(None)
    cuda.memory._set_memory_metadata("")
    cuda.memory._record_memory_history(stacks="python")
    del used
    cuda.synchronize()
    torch_like.empty(10, device="cuda")
    return metadata(cuda)
