"""Estimates of the peak memory of one training step by several tools, each in a process of its own.

`compare_estimators.py` prints the table; it needs accelerate and deepspeed. FAKEGPU names the folder of a checkout of
FakeGPU, without which its rows are left out. `compare_estimators.py TOOL MODEL` prints one estimate as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import show, table

from forebay._base.byte_sizes import format_bytes

HERE = Path(__file__).parent
SHAPES = {"gpt2": (2, 256, "float32"), "llama": (1, 2048, "bfloat16")}
CARD = "h100"
LIMIT = 900  # seconds
HOST = {("fakegpu_run", "llama"): "not run: computes on the CPU, 54 GB"}  # what this machine cannot run


def step(name: str, device: str, track=None, *, moved: bool = False):
    """Train a model on a device."""
    import torch
    from torch_models import MODELS

    batch, length, dtype = SHAPES[name]
    torch.set_default_dtype(getattr(torch, dtype))
    if moved:
        model = MODELS[name]().to(device)
    else:
        with torch.device(device):
            model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    if track is not None:
        track(model, optimizer)
    ids = torch.randint(0, model.tokens.num_embeddings, (batch, length + 1)).to(device)
    model(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()


def mem_tracker(name: str) -> int:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    with FakeTensorMode(), tracker:
        step(name, "cuda" if torch.cuda.is_available() else "cpu", track=tracker.track_external)
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return int(found["Total"])


def meta_model(name: str):
    import torch
    from torch_models import MODELS

    torch.set_default_dtype(getattr(torch, SHAPES[name][2]))
    with torch.device("meta"):
        return MODELS[name]()


def accelerate(name: str) -> int:
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(meta_model(name))
    if SHAPES[name][2] == "float32":
        return max(estimate_training_usage(total, "float32").values())
    return max(estimate_training_usage(2 * total, SHAPES[name][2]).values())  # of the size in float32


def deepspeed(name: str) -> int:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    total = sum(each.numel() for each in meta_model(name).parameters())
    _, gpu = estimate_zero2_model_states_mem_needs(total, num_gpus_per_node=1, num_nodes=1, cpu_offload=False)
    return int(gpu)


def fakegpu_run(name: str) -> int:
    import fakegpu

    fakegpu.init(runtime="fakecuda", profile="h100", device_count=1)
    import torch

    step(name, "cuda", moved=True)  # as its documentation does
    return int(torch.cuda.max_memory_allocated())


def fakegpu_static(name: str) -> int:
    import torch
    from fakegpu import estimate_module_memory
    from torch_models import MODELS

    batch, length, dtype = SHAPES[name]
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device("meta"):  # else Llama needs 13.5 GB of host memory
        model = MODELS[name]()
        ids = torch.zeros(batch, length, dtype=torch.int64)
    report = estimate_module_memory(model, (ids, ids), mode="training", optimizer="adamw", target_profile="h100")
    print(json.dumps({key: value for key, value in report.items() if "peak" in key}), file=sys.stderr)
    return int(report["estimated_peak_bytes"])


def forebay(name: str) -> int:
    step(name, "cuda")
    return 0


TOOLS = {
    "forebay": forebay, "mem_tracker": mem_tracker, "accelerate": accelerate, "deepspeed": deepspeed,
    "fakegpu_run": fakegpu_run, "fakegpu_static": fakegpu_static,
}  # fmt: skip
LABELS = {
    "forebay": "forebay run --shapes-only: allocated", "mem_tracker": "torch.distributed._tools.mem_tracker",
    "accelerate": "accelerate estimate-memory (its formula)", "deepspeed": "DeepSpeed, estimate_zero2, one GPU",
    "fakegpu_run": "FakeGPU, fakecuda runtime", "fakegpu_static": "FakeGPU, estimate_module_memory",
}  # fmt: skip


def measured(tool: str, name: str) -> dict[str, object]:
    """Run a tool in a process."""
    command = [sys.executable]
    environment = dict(os.environ)
    with TemporaryDirectory() as folder:
        if tool == "forebay":
            command += ["-m", "forebay", "run", "--quiet", "--output", folder, "--emulate", f"cuda:1@{CARD}",
                        "--shapes-only"]  # fmt: skip
        if tool.startswith("fakegpu"):
            environment["PYTHONPATH"] = os.pathsep.join([os.environ["FAKEGPU"], environment.get("PYTHONPATH", "")])
        started = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, __file__, tool, name], env=environment, capture_output=True, text=True, timeout=LIMIT,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"more than {LIMIT} s"}
        seconds = time.perf_counter() - started
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
        result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"bytes"'))) | {
            "seconds": seconds
        }
        if tool == "forebay":
            (use,) = json.loads((Path(folder) / "summary.json").read_text())["torch"]
            result |= {"bytes": use["peak_allocated"], "reserved": use["peak_reserved"]}
        return result


def main() -> None:
    tools = [each for each in TOOLS if "FAKEGPU" in os.environ or not each.startswith("fakegpu")]
    for name, (batch, length, dtype) in SHAPES.items():
        rows = table(f"{name}: AdamW, {dtype}, {batch} x {length:,} tokens", "tool", "peak", "clock", "host memory")
        for tool in tools:
            found = {"error": HOST[tool, name]} if (tool, name) in HOST else measured(tool, name)
            if "error" in found:
                rows.add_row(LABELS[tool], str(found["error"])[:60], "", "")
                continue
            cells = f"{found['seconds']:.0f} s", format_bytes(found["host"])
            rows.add_row(LABELS[tool], format_bytes(found["bytes"]), *cells)
            if "reserved" in found:
                rows.add_row(LABELS[tool].replace("allocated", "reserved"), format_bytes(found["reserved"]), *cells)
        show(rows)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        nbytes = TOOLS[sys.argv[1]](sys.argv[2])
        print(json.dumps({"bytes": nbytes, "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}))
    else:
        main()
