"""Training steps that other people recorded on real GPUs, rehearsed on emulated devices: memory as recorded.

The histories are in ../shared/data/gpu-snapshots; support/recorded_language_model.py and
support/recorded_quantized_model.py have the layers and sizes that they show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="rehearses PyTorch programs on emulated devices")

from support import recorded_language_model as recorded  # noqa: E402 -- needs torch

import forebay  # noqa: E402 -- as above
from forebay import snapshot  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import workspaces  # noqa: E402 -- as above
from forebay.records.model import Action  # noqa: E402 -- as above
from forebay.snapshot.replay.memory_state import memory_state  # noqa: E402 -- as above

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "gpu-snapshots"
GRANULE = 512  # bytes of the smallest block
DROPOUT_STATE = 8  # bytes of each of the two numbers that fused attention allocates in newer versions of PyTorch


class Program(NamedTuple):
    """A recorded program: its card, its preparation, and the permitted differences of the peaks."""

    card: str
    used_before: tuple[str, ...]  # the passes for which cuBLAS has a workspace before the history begins
    prepare: Callable[[], Callable[[], object]]  # loads the model, and returns the step
    most_allocated: float  # relative difference of the peaks
    most_reserved: float
    dropout_states: int = 0  # numbers that only newer versions allocate


def language_model(times, only_forward=False):
    """Return a function that prepares a step of the language model."""

    def prepare():
        model = recorded.LanguageModel(times, device="cuda")
        optimizer = recorded.AdamW(model.parameters())
        tokens = torch.zeros(recorded.BATCH, times, dtype=torch.long, device="cuda")
        torch.cuda.empty_cache()

        def forward():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return model(tokens)

        return forward if only_forward else lambda: recorded.training_step(model, optimizer, tokens)

    return prepare


def quantized_model():
    """Prepare a step of the quantized model."""
    pytest.importorskip("bitsandbytes", reason="the recorded program uses its 4-bit weights")
    from support import recorded_quantized_model as quantized

    model = quantized.LanguageModel()
    tokens = torch.zeros(1, quantized.TIMES, dtype=torch.long, device="cuda")
    return lambda: quantized.forward_and_backward(model, tokens)


PROGRAMS = {
    "train_step_cold": Program("h100", (), language_model(128), 0, 0.0002),
    "train_step_warm": Program("h100", ("forward", "backward"), language_model(256), 0.00001, 0.0016),
    "forward_mixed_precision": Program("h100", ("forward",), language_model(512, only_forward=True), 0, 0),
    "train_older_format": Program("t4", ("forward", "backward"), quantized_model, 0.00025, 0.0025, 2 * 22),
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
    """Return the memory of a recorded history. The state at its peak is reconstructed from the state at its end."""
    path = FOLDER / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"there is no recorded history at {path}")
    (found,) = (each for each in snapshot.load(path) if len(each.trace))
    trace = found.trace
    change, changes, sizes, live = 0, [], [], {}
    for action, size, address in zip(*(trace[each].tolist() for each in ("action", "nbytes", "address")), strict=True):
        rounded = -(-size // GRANULE) * GRANULE
        if action == Action.ALLOC:
            sizes.append(size)
            live[address] = rounded
            change += rounded
        elif action == Action.FREE_COMPLETED:
            change -= live.pop(address, rounded)
        changes.append(change)
    peak = memory_state(found, changes.index(max(changes)) + 1)
    return Memory(sizes, peak.requested + peak.rounding, int(found.segments["nbytes"].sum()))


def rehearse(program):
    """Return the memory of the program on an emulated device, without values."""
    with forebay.emulate("cuda", profile=program.card), patch("shapes"):
        step = program.prepare()
        use_cublas(program.used_before)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)
        results = step()
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
    program = PROGRAMS[name]
    expected, found = read(name), rehearse(program)
    assert DROPOUT_STATE not in expected.sizes
    assert found.sizes.count(DROPOUT_STATE) == program.dropout_states
    assert [each for each in found.sizes if each != DROPOUT_STATE] == expected.sizes
    assert abs(found.allocated / expected.allocated - 1) <= program.most_allocated
    assert abs(found.reserved / expected.reserved - 1) <= program.most_reserved
