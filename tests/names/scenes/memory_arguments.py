"""Arguments of the functions of torch.cuda.memory that record, take or write snapshots."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from pathlib import Path

from support.on_oracle import outcome

FRESH_PROCESS = True


class Index:
    def __index__(self):
        return 3


class Number:
    def __int__(self):
        return 3


class Failing:
    def __bool__(self):
        raise KeyError(3)

    __int__ = __bool__


def without_addresses(results):
    """Return the results without the addresses in "Invoked with: …"."""
    return [
        {key: re.sub(r"\d{9,}|0x[0-9a-f]+", "…", text) if key == "message" else text for key, text in each.items()}
        for each in results
    ]


def recorded_with(cuda, name, values):
    record = cuda.memory._record_memory_history
    return without_addresses([outcome(cuda, record, **{name: value}) for value in values])


def recording_modes(cuda, torch_like):
    texts = (None, "", "foo", 0, 1, 1.0, [], b"all", b"foo", "\ud800")
    return {name: recorded_with(cuda, name, texts) for name in ("enabled", "context", "stacks")}


def recorded_entries(cuda, torch_like):
    numbers = (-1, 0, True, 1.0, None, "3", [], 1 << 63, (1 << 64) - 1, 1 << 64, Index(), Number(), Failing())
    return recorded_with(cuda, "max_entries", numbers)


def recorded_actions(cuda, torch_like):
    collections = (
        None, [], ("alloc",), {"alloc"}, {"alloc": 1}, {"alloc": 1}.keys(), {1: "alloc"}.values(), "alloc", b"alloc", 5,
        iter(["alloc"]), (each for each in ["alloc"]), map(str, ["alloc"]), ["alloc", 3], ["alloc", b"oom"], ["foo"],
    )  # fmt: skip
    return recorded_with(cuda, "skip_actions", collections)


def recording_flags(cuda, torch_like):
    names = (
        "clear_history", "compile_context", "global_record_annotations", "record_pinned_host_memory", "record_cuda",
    )  # fmt: skip
    values = (None, 0, 1, 1.5, "x", "", [], Failing())
    return {name: recorded_with(cuda, name, values) for name in names}


def recording_of_a_device(cuda, torch_like):
    return recorded_with(cuda, "device", ("nonsense", 99, [], None))


def first_wrong_argument_is_reported(cuda, torch_like):
    record = cuda.memory._record_memory_history
    wrong = [
        ("foo", "foo", "foo", -1), ("foo", "foo", "foo"), (None, "foo"), (None, None, "foo"),
        ("foo", "all", "all", 5, None, False, False, False, ["foo"], True),
        (None, "all", "all", 5, None, False, False, False, ["foo"], True),
        (None, "all", "all", 5, None, False, False, False, None, True),
        ("all", "all", "all", 5, None, False, False, False, ["foo"], True, False),
    ]  # fmt: skip
    return without_addresses([outcome(cuda, record, *arguments) for arguments in wrong])


def legacy_flags(cuda, torch_like):
    record = cuda.memory._record_memory_history
    names = ("record_context", "trace_alloc_record_context", "record_context_cpp", "clear_history")
    wrong = [{name: value} for name in names for value in (None, 1, "x")]
    return without_addresses([outcome(cuda, record, enabled, **named) for named in wrong for enabled in (True, False)])


def legacy_entries(cuda, torch_like):
    record = cuda.memory._record_memory_history
    numbers = (1.5, -1, 0, None, True, "3", (1 << 63) - 1, 1 << 63, -(1 << 63), Index(), Number())
    wrong = [{"trace_alloc_max_entries": number} for number in numbers]
    wrong += [{"skip_actions": actions} for actions in ("alloc", ["foo"], ["alloc"], 5)]
    return without_addresses([outcome(cuda, record, True, **named) for named in wrong])


def negative_number_of_entries_is_unlimited(cuda, torch_like):
    cuda.memory._record_memory_history(True, trace_alloc_max_entries=-1)
    for size in range(1000, 2000):
        torch_like.empty(size, dtype=torch_like.uint8, device="cuda")
    return len(cuda.memory._snapshot()["device_traces"][0])


def recording_does_not_initialise(cuda, torch_like):
    record, results = cuda.memory._record_memory_history, []
    for arguments in (("foo",), ("all", "all", None), ("all",)):
        results += [outcome(cuda, record, *arguments).get("error"), cuda.is_initialized()]
    tensor = torch_like.empty(1000, dtype=torch_like.uint8, device="cuda:1")
    entries = [[each["action"] for each in trace] for trace in cuda.memory._snapshot()["device_traces"]]
    return results, entries, tensor.numel()


def snapshot_has_all_devices_once_recording_was_changed(cuda, torch_like):
    before = cuda.memory._snapshot()["device_traces"]
    cuda.memory._record_memory_history(None)
    return before, cuda.memory._snapshot()["device_traces"]


def seeds_stay_pending_while_recording(cuda, torch_like):
    called = []
    cuda._lazy_call(lambda: called.append(1))
    cuda.memory._record_memory_history()
    before = called.copy()
    cuda.init()
    return before, called


def pinned_memory_only(cuda, torch_like):
    cuda.memory._record_memory_history(record_cuda=False, record_pinned_host_memory=True)
    pinned = torch_like.empty(1000, pin_memory=True)
    tensor = torch_like.empty(1000, device="cuda")
    found = cuda.memory._snapshot()
    return [len(trace) for trace in found["device_traces"]], len(found["host_traces"]), pinned.numel() + tensor.numel()


def pool_ids(cuda, torch_like):
    pools = (
        (0, "x"), (True, 0), (0, False), (1 << 63, 0), (0, 1 << 63), (-(1 << 63) - 1, 0), ((1 << 63) - 1, 0), (0, 0.0),
        "ab", "", b"ab", [], (), {}, {0: 0, 1: 1}, {0: 0}, 5, [0, 1], (0, 1, 2),
    )  # fmt: skip
    flags = (True, "x")
    return [outcome(cuda, cuda.memory_snapshot, pool, flag) for pool in pools for flag in flags]


def traces_are_included_by_a_bool(cuda, torch_like):
    return [outcome(cuda, cuda.memory_snapshot, None, flag) for flag in (True, False, 0, 1, None, "x", [])]


def addresses_of_blocks(cuda, torch_like):
    addresses = (None, "x", 1.5, True, -1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 64), [1], Index())
    results = [outcome(cuda, cuda.memory._allocation_traceback, address) for address in addresses]
    return [each if each.get("error") != "TypeError" else "TypeError" for each in results]


def metadata(cuda, torch_like):
    memory = cuda.memory
    values = ("x", "", {"a": [1, None]}, {}, None, 5, b"x", bytearray(b"y"), ["x"], "\ud800", True)
    results = [(outcome(cuda, memory._set_memory_metadata, value), memory._get_memory_metadata()) for value in values]
    return results, outcome(cuda, memory._set_memory_metadata, {"a": {1}}), cuda.is_initialized()


def annotations(cuda, torch_like):
    tensor = torch_like.empty(10, device="cuda")
    annotate = cuda.memory._annotate_tensor
    others = (None, 5, "x", torch_like.empty(1), torch_like.empty(0, device="cuda"))
    results = [outcome(cuda, annotate, tensor, value) for value in ("x", "", 5, None, {}, b"x", ["a"])]
    return without_addresses(results), [outcome(cuda, annotate, other, "x") for other in others]


def annotation_of_a_view(cuda, torch_like):
    cuda.memory._record_memory_history(stacks="python")
    tensor = torch_like.empty(10, device="cuda")
    cuda.memory._annotate_tensor(tensor[2:5], "view")
    entry = cuda.memory._snapshot()["device_traces"][0][-1]
    return entry["action"], entry["user_metadata"], entry["size"], entry["addr"] == tensor.data_ptr()


def files_of_snapshots(cuda, torch_like):
    dump, missing = cuda.memory._dump_snapshot, "/nowhere/x"
    results = [outcome(cuda, dump, name)["error"] for name in (None, 1.5, [], missing, missing.encode(), Path(missing))]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "snapshot"))
        names = (path, path.encode(), Path(path), os.open(path, os.O_CREAT | os.O_WRONLY))
        results += [outcome(cuda, dump, name) for name in names]
        keys = sorted(pickle.loads(Path(path).read_bytes()))
        os.chdir(folder)
        dump(augment_with_fx_traces=True)
        return results, keys, sorted(path.name for path in Path().iterdir())


def snapshot_arguments(cuda, torch_like):
    snapshot = cuda.memory._snapshot
    return [sorted(snapshot(device)) for device in (None, 99, "nonsense", [])], sorted(snapshot(None, True))
