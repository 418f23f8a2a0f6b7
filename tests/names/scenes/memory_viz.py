"""torch.cuda._memory_viz: snapshots as text."""

from __future__ import annotations

import contextlib
import copy
import io

from support.on_oracle import outcome

MIB = 1 << 20
FRAMES = [
    {"filename": "/a/b/layer.py", "line": 3, "name": "forward"},
    {"filename": "run.py", "line": 9, "name": "main"},
]
NATIVE = [{"filename": "/x/ceval.c", "line": 1, "name": "eval"}, {"filename": "x.cpp", "line": 2, "name": "PyEval_x"}]


def block(address, size, requested, state="active_allocated", frames=FRAMES):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def segment(address, blocks, stream=0):
    total = sum(each["size"] for each in blocks)
    live = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
    return {
        "device": 0, "address": address, "total_size": total, "allocated_size": live, "active_size": live,
        "requested_size": sum(each["requested_size"] for each in blocks), "stream": stream, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def snapshot():
    return {
        "segments": [
            segment(0, [block(0, 2 * MIB, 1000, "inactive", [])]),
            segment(100 * MIB, [
                block(100 * MIB, 21 * MIB, 21 * MIB - 100), block(121 * MIB, 3 * MIB, 3 * MIB, frames=[]),
                block(124 * MIB, 16 * MIB, 0, "inactive", []), block(140 * MIB, 20 * MIB, 20 * MIB, frames=NATIVE),
                block(160 * MIB, 5 * MIB, 5 * MIB, "active_pending_free"),
            ]),
            segment(300 * MIB, [block(300 * MIB, 40 * MIB, 40 * MIB)], stream=7),
        ],
        "device_traces": [history(), [], [entry("alloc", 5, 600), entry("free_completed", 5, 600)]],
    }  # fmt: skip


def entry(action, address, size, **more):
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": FRAMES, **more}


def history():
    return [
        entry("segment_alloc", 500 * MIB, 20 * MIB), entry("alloc", 500 * MIB, MIB), entry("alloc", 502 * MIB, 300),
        entry("free_requested", 500 * MIB, MIB), entry("free_completed", 500 * MIB, MIB),
        entry("alloc", 500 * MIB, 2 * MIB), entry("alloc", 101 * MIB, 5), entry("alloc", 9000 * MIB, 1 << 44),
        entry("annotate", 101 * MIB, 5, user_metadata="weights"), entry("free_requested", 7, 70),
        {"action": "oom", "device_free": 5 * MIB, "size": 1 << 33, "stream": 0},
        entry("segment_free", 500 * MIB, 20 * MIB), entry("segment_free", 8, 80), entry("snapshot", 0, 0),
    ] + [entry("alloc", 1000 + at, 1) for at in range(30)]  # fmt: skip


def sizes(cuda, torch_like):
    viz = cuda._memory_viz
    numbers = [0, 1023, 1024, 1536, -2048, MIB, 5 << 70, 5 << 80, 1.5]
    return [repr(viz.Bytes(n)) for n in numbers], repr(viz.Bytes(5) + 1024), viz._format_size(2048), viz.PAGE_SIZE


def active(cuda, torch_like):
    return [cuda._memory_viz.calc_active(each) for each in snapshot()["segments"]], cuda._memory_viz.legend


def stats(cuda, torch_like):
    nothing = {"segments": [], "device_traces": []}
    return cuda._memory_viz.segsum(snapshot()).split("\n"), cuda._memory_viz.segsum(nothing).split("\n")


def stats_that_do_not_add_up(cuda, torch_like):
    broken = snapshot()
    broken["segments"][1]["total_size"] += 512
    return outcome(cuda, cuda._memory_viz.segsum, broken)


def traces(cuda, torch_like):
    text = cuda._memory_viz.trace(snapshot())
    return [line for line in text.split("\n") if "TOTAL" not in line], text.count("TOTAL MEM: ")


def total_of_a_trace(cuda, torch_like):
    return cuda._memory_viz.trace(snapshot()).split("\n")[-1]


def flames(cuda, torch_like):
    viz = cuda._memory_viz
    return viz.segments(snapshot(), str.splitlines), viz.memory(snapshot(), format_flamegraph=str.splitlines)


def old_snapshots(cuda, torch_like):
    old = segment(0, [block(0, 1024, 1000)])
    del old["blocks"][0]["frames"]
    history_of_block = [{"real_size": 500, "frames": FRAMES}, {"real_size": 100}]
    older = {**old, "blocks": [{"size": 1024, "state": "active_allocated", "history": history_of_block}]}
    viz = cuda._memory_viz
    return [viz.memory({"segments": [row]}, str.splitlines) for row in (old, older)]


def comparison(cuda, torch_like):
    before, after = snapshot()["segments"], snapshot()["segments"][:2]
    after.append(segment(600 * MIB, [block(600 * MIB, 1024, 1000)]))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        folded = cuda._memory_viz.compare(before, after, str.splitlines)
    return folded, output.getvalue()


def unfreed_allocations(cuda, torch_like):
    data = snapshot()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        found = cuda._memory_viz.filter_alloc_free_pairs(data)
    kept = [[[each["action"], each.get("addr")] for each in trace] for trace in found["device_traces"]]
    return kept, found is data, output.getvalue()


def other_state_is_unchanged(cuda, torch_like):
    data = snapshot()
    cuda._memory_viz.segsum(data)
    cuda._memory_viz.trace(data)
    return data == copy.deepcopy(snapshot())


def frame_texts(cuda, torch_like):
    viz, frames = cuda._memory_viz, FRAMES + NATIVE
    texts = [viz._frames_fmt(frames, *flags) for flags in ((), (True,), (False, True), (True, True))]
    wrong = [outcome(cuda, viz._frame_fmt, frame)["error"] for frame in ({}, None, {"line": 1, "filename": "x"}, 5)]
    wrong += [outcome(cuda, viz._frames_fmt, frames)["error"] for frames in ([{}], None, 5)]
    shown = [viz._frame_filter(*names) for names in (("main", "run.py"), ("_start", "run.py"), ("a", "/core/boxing/x"))]
    return viz._frame_fmt(FRAMES[0]), viz._frame_fmt(FRAMES[0], full_filename=True), texts, wrong, shown


def frames_of_blocks(cuda, torch_like):
    viz = cuda._memory_viz
    old = {"size": 10, "history": [{"real_size": 3, "frames": FRAMES}]}
    blocks = [block(0, 10, 7), {"size": 10}, {"size": 10, "requested_size": 4}, old, {"history": [{"real_size": 3}]}]
    wrong = [outcome(cuda, viz._block_extra, each)["error"] for each in ({}, {"frames": []}, 5, {"history": []})]
    output = io.StringIO()
    viz._write_blocks(output, "start", [block(0, 10, 7), {"size": 10, "state": "inactive"}])
    return [[viz._block_extra(each), viz._block_extra_legacy(each)] for each in blocks], wrong, output.getvalue()


def free_bytes(cuda, torch_like):
    return [
        cuda._memory_viz._report_free(*sizes) for sizes in ((0, 0), (5 * MIB, 0), (3, 1), (1 << 30, 1 << 29), (0, 8))
    ]


def data_that_are_no_snapshot(cuda, torch_like):
    viz, folded = cuda._memory_viz, {"format_flamegraph": str}
    functions = (
        (viz.segsum, {}), (viz.trace, {}), (viz.segments, folded), (viz.memory, folded), (viz.calc_active, {}),
        (viz.filter_alloc_free_pairs, {}),
    )  # fmt: skip
    wrong = (None, 5, {}, [], {"segments": []}, {"segments": [{}]}, {"segments": None, "device_traces": None}, "x")
    return [[outcome(cuda, call, data, **named).get("error") for data in wrong] for call, named in functions]


DIFFERS = {"total_of_a_trace": "PyTorch's total counts only the last entry"}
