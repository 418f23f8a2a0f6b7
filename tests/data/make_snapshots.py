"""Record small snapshots with PyTorch over the oracle, a stand-in CUDA runtime: `run.sh tests/data/make_snapshots.py`.

Each program below becomes tests/data/snapshots/NAME.pickle.gz. Files are the same from run to run but for addresses and
times. PyTorch 2.15 wrote those in the repository, with FAKE_CUDA_DEVICES=2 and FAKE_CUDA_TOTAL_MB=1024.
"""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "snapshots"
MIB = 1 << 20


def layers(torch: Any, count: int = 4, device: str = "cuda:0") -> list[Any]:
    """Return the tensors of a small network, allocated by nested functions."""

    def layer(number: int) -> list[Any]:
        weight = torch.empty((1 + number) * MIB, dtype=torch.uint8, device=device)
        temporary = torch.empty(3 * MIB, dtype=torch.uint8, device=device)
        activation = torch.empty(700_000, dtype=torch.uint8, device=device)
        del temporary
        return [weight, activation]

    return [tensor for number in range(count) for tensor in layer(number)]


def program_two_devices_and_streams(torch: Any) -> None:
    kept = layers(torch)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept += layers(torch, 2)
    kept[0].record_stream(side)
    del kept[0]
    other = layers(torch, 2, "cuda:1")
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])
    del other


def program_expandable_segments(torch: Any) -> None:
    kept = layers(torch, 6)
    del kept[::2]
    torch.cuda.empty_cache()
    kept += layers(torch, 3)
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])


def program_private_pools(torch: Any) -> None:
    kept = layers(torch, 2)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept += layers(torch, 2)
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])


def program_out_of_memory(torch: Any) -> None:
    kept = []
    try:
        while True:
            kept += layers(torch, 8)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot(os.environ["OUT"])


def program_graph(torch: Any) -> None:
    kept = layers(torch, 2)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        inside = layers(torch, 2)
    del inside
    kept += layers(torch, 1)
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])


def program_wrapped_history(torch: Any) -> None:
    for _ in range(20):
        kept = layers(torch, 3)
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])
    del kept


def program_metadata(torch: Any) -> None:
    kept = []
    for step in range(3):
        torch._C._cuda_setMemoryMetadata(f"step {step}")
        kept += layers(torch, 1)
    torch.cuda.memory._dump_snapshot(os.environ["OUT"])


PROGRAMS: dict[str, Callable[[Any], None]] = {
    name.removeprefix("program_"): value for name, value in list(globals().items()) if name.startswith("program_")
}
SETTINGS = {"expandable_segments": "expandable_segments:True", "out_of_memory": "max_split_size_mb:64"}
RECORDING = {"wrapped_history": {"max_entries": 100}, "cpp_frames": {"stacks": "all"}}


def record(name: str) -> None:
    import torch

    options = {"stacks": "python"} | RECORDING.get(name, {})
    torch.cuda.memory._record_memory_history(**options)
    PROGRAMS[name.replace("cpp_frames", "private_pools")](torch)


def without_folders(value: Any, done: dict[int, Any]) -> Any:
    """Return the value with the last two parts of the file names; what was shared remains shared."""
    if id(value) not in done:
        if isinstance(value, list):
            copied = [without_folders(each, done) for each in value]
        elif isinstance(value, dict):
            copied = {key: without_folders(each, done) for key, each in value.items()}
            if "filename" in copied:
                copied["filename"] = "/".join(copied["filename"].split("/")[-2:])
        else:
            copied = value
        done[id(value)] = copied
    return done[id(value)]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in [*PROGRAMS, "cpp_frames"]:
        raw = FOLDER / f"{name}.pickle"
        environ = os.environ | {"OUT": str(raw), "PYTORCH_CUDA_ALLOC_CONF": SETTINGS.get(name, "")}
        subprocess.run([sys.executable, "make_snapshots.py", name], env=environ, cwd=FOLDER.parent, check=True)
        content = raw.read_bytes()
        raw.unlink()
        value = without_folders(pickle.loads(content), {})  # written by the line above
        content = pickle.dumps(value, 4)
        (FOLDER / f"{name}.pickle.gz").write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    record(sys.argv[1]) if sys.argv[1:] else main()
