"""Training steps that other people recorded on real GPUs, rehearsed on emulated devices: memory as recorded.

The histories are in ../shared/data/gpu-snapshots; support/recorded_language_model.py has the layers and sizes that they
show.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="rehearses PyTorch programs on emulated devices")

from support import recorded_language_model as recorded  # noqa: E402 -- needs torch

import forebay  # noqa: E402 -- as above
from forebay import snapshot  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import workspaces  # noqa: E402 -- as above
from forebay.snapshot.model import Action, State  # noqa: E402 -- as above

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "gpu-snapshots"
GRANULE = 512  # bytes of the smallest block


class Program(NamedTuple):
    """What a recorded program did."""

    times: int  # length of the sequences
    only_forward: bool
    used_before: tuple[str, ...]  # where cuBLAS had its workspace before the history begins


PROGRAMS = {
    "train_step_cold": Program(128, False, ()),
    "train_step_warm": Program(256, False, ("forward", "backward")),
    "forward_mixed_precision": Program(512, True, ("forward",)),
}


class Memory(NamedTuple):
    """Sizes of the allocations in order, and peaks in bytes."""

    sizes: list[int]
    allocated: int
    reserved: int


@pytest.fixture(autouse=True)
def kept_workspaces():
    workspaces.set_lifetime("process")  # as in the versions of PyTorch that recorded the histories
    yield
    workspaces.set_lifetime(None)


def read(name):
    """Return the memory of a recorded history. What lived before is known from the blocks at the end."""
    path = FOLDER / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"there is no recorded history at {path}")
    (found,) = (each for each in snapshot.load(path) if len(each.trace))
    trace = found.trace
    change, changes, sizes, live = 0, [0], [], {}
    for action, size, address in zip(*(trace[each].tolist() for each in ("action", "nbytes", "address")), strict=True):
        rounded = -(-size // GRANULE) * GRANULE
        if action == Action.ALLOC:
            sizes.append(size)
            live[address] = rounded
            change += rounded
        elif action == Action.FREE_COMPLETED:
            change -= live.pop(address, rounded)
        changes.append(change)
    blocks = found.blocks
    at_end = int(blocks["nbytes"][blocks["state"] == State.LIVE].sum())
    return Memory(sizes, at_end - change + max(changes), int(found.segments["nbytes"].sum()))


def rehearse(program):
    """Return the memory of the program on an emulated H100, without values."""
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        model = recorded.LanguageModel(program.times, device="cuda")
        optimizer = recorded.AdamW(model.parameters())
        tokens = torch.zeros(recorded.BATCH, program.times, dtype=torch.long, device="cuda")
        use_cublas(program.used_before)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)
        if program.only_forward:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                results = model(tokens)
        else:
            results = recorded.training_step(model, optimizer, tokens)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        statistics = torch.cuda.memory_stats()
        del results
    sizes = [entry["size"] for entry in trace if entry["action"] == "alloc"]
    return Memory(sizes, statistics["allocated_bytes.all.peak"], statistics["reserved_bytes.all.peak"])


def use_cublas(passes):
    if passes:
        one = torch.ones(8, 8, device="cuda", requires_grad="backward" in passes)
        product = one @ one
        if "backward" in passes:
            product.sum().backward()


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_is_that_of_the_recorded_gpu(name):
    expected, found = read(name), rehearse(PROGRAMS[name])
    assert found.sizes == expected.sizes
    assert abs(found.allocated / expected.allocated - 1) < 0.0001
    assert abs(found.reserved / expected.reserved - 1) < 0.002
