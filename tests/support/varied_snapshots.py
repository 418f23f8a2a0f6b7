"""Random snapshots in PyTorch's schema, with every kind of frame, annotation and version that the readers know."""

from __future__ import annotations

import random
from typing import Any

_FILES = (
    "/home/ada/train.py", "/home/ada/model.py", "model.py", "<string>", "<ipython-input-7-9b3a>", "<frozen runpy>",
    "/usr/lib/python3.11/runpy.py", "/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/json/decoder.py",
    "/opt/conda/lib/python3.11/site-packages/pandas/core/frame.py", "/venv/lib/python3.11/site-packages/trl/trainer.py",
    "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "/venv/lib/python3.11/site-packages/numpy/x.py",
    "/venv/lib/python3.11/site-packages/forebay/cuda/__init__.py", "/tmp/torchinductor_ada/ab/cab.py",
    "C:\\Users\\ada\\train.py", "libtorch.so", "??", "", "/home/\udc80/\U0001f600.py",
)  # fmt: skip
_NAMES = (
    "f", "forward", "<module>", "_call_impl", "wrapper", "Trainer.step",
    "at::_ops::mul_Tensor::call(at::Tensor const&)",
    "torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor>&&)", "at::_ops::softmax_int::call(int)",
    "torch::autograd::generated::SoftmaxBackward0::apply(std::vector<at::Tensor>&&)", "at::native::empty_cuda()",
    "torch::autograd::Engine::thread_main()", "c10::cuda::x()", "mylib::allocate(int)", "_PyEval_EvalFrame", "??",
)  # fmt: skip
_FORWARD = ('  File "/home/ada/loss.py", line 12, in loss\n    x * y\n', "no traceback", '  File "a", line x, in b')
_TRACE = 'File "/venv/lib/python3.11/site-packages/torch/fx/x.py", line 1, in t\nFile "/home/ada/n.py", line 5, in n'
_BASE = 0x7F0000000000


def varied(seed: int) -> dict[str, Any]:
    """Return a snapshot; some have large addresses, forward frames, annotations, or the schema of an old version."""
    chosen = random.Random(seed)
    base = 0xFF00000000000000 if seed % 5 == 1 else _BASE
    frames = [_frame(chosen) for _ in range(chosen.randint(3, 40))]
    stacks = [[], *([chosen.choice(frames) for _ in range(chosen.randint(1, 9))] for _ in range(chosen.randint(1, 30)))]
    weights = [chosen.random() ** 8 for _ in stacks]  # so that one site has most of the memory
    entries: list[dict[str, Any]] = []
    live: dict[int, tuple[int, dict[str, Any]]] = {}
    clock = 1_700_000_000_000_000
    for _ in range(chosen.randint(0, 300)):
        clock += chosen.randint(0, 40)
        place = base + 4096 * chosen.randrange(64)
        own: dict[str, Any] = {"frames": chosen.choices(stacks, weights)[0], "stream": chosen.choice((0, 7, 1 << 40))}
        if seed % 3 == 1 and chosen.random() < 0.2:
            own["forward_frames"] = chosen.choices(_FORWARD, k=2)
        if seed % 4 == 1:
            own |= {"compile_context": chosen.choice(("N/A", "0/0", "1/0")), "user_metadata": chosen.choice("ab ")}
        if seed % 4 == 2:
            own["pool_id"] = (0, chosen.choice((0, 3, 9)))
        if place in live:
            action, size = chosen.choice(("free_requested", "free_completed")), live[place][0]
            if action == "free_requested":
                del live[place]
        elif chosen.random() < 0.05:
            action, size = chosen.choice(("oom", "segment_map", "segment_alloc", "snapshot", "unknown")), 4096
            own["device_free"] = 99
        else:
            action, size = "alloc", chosen.randint(1, 4096)
            live[place] = size, own
        entries.append({"action": action, "addr": place, "size": size, "time_us": clock, **own})
    if entries:
        del entries[: chosen.choice((0, 0, len(entries) // 3))]
    found: dict[str, Any] = {"segments": [_segment(base, live, seed)], "device_traces": [entries]}
    if seed % 6 == 3:
        found["external_annotations"] = [
            {"stage": chosen.choice(("START", "END")), "name": f"{chosen.choice(('step', 'part'))}{at // 2}",
             "device": chosen.choice((0, 1)), "time_us": 1_700_000_000_000_000 + 200 * at}
            for at in range(20)
        ]  # fmt: skip
    if seed % 7 == 2:
        found |= {"host_segments": [_segment(base, {}, 0)], "host_traces": []}
    return found


def _frame(chosen: random.Random) -> dict[str, Any]:
    found = {"filename": chosen.choice(_FILES), "name": chosen.choice(_NAMES), "line": chosen.randint(0, 9)}
    return found | ({"fx_original_trace": _TRACE, "fx_node_op": "call"} if "inductor" in found["filename"] else {})


def _segment(base: int, live: dict[int, tuple[int, dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Return a segment of 64 pages; old versions have no addresses of blocks, and their history in place of frames."""
    blocks = []
    for place in range(base, base + 64 * 4096, 4096):
        size, own = live.get(place, (4096, {}))
        block = {"size": 4096, "state": "active_allocated" if place in live else "inactive"}
        if seed % 8 == 6:
            history = [{"addr": place, "real_size": size, "frames": own.get("frames", [])}]
            blocks.append(block | ({"history": history} if place in live else {}))
        else:
            kept = {name: own[name] for name in ("frames", "forward_frames") if name in own}
            blocks.append(block | {"address": place, "requested_size": size, **kept})
    return {
        "device": 0, "address": base, "total_size": 64 * 4096, "stream": 0, "segment_type": "large", "blocks": blocks,
        "segment_pool_id": (1, seed % 3), "is_expandable": seed % 2 == 0,
    }  # fmt: skip
