"""Synthetic histories of a training program, with 10^3 to 10^7 entries, for tests of scale and benchmarks.

`synthetic(1_000_000)` is the history of a model in training: parameters, warm-up, then steps of forward, backward and
optimizer on two streams and in a private pool, a logger that keeps 128 KiB in every step, and an unfinished last step.
A simulated device executes a few different steps; as each begins and ends in the same state, the long history is made
of copies of them, and a replay places every block as recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from forebay import OutOfMemory, simulate
from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Action, Snapshot, State
from forebay.snapshot.formats import torch_pickle

__all__ = ["synthetic"]

KIB, MIB = 1 << 10, 1 << 20
_CAPACITY = 80 << 30
_BEGIN_US = 1_767_225_600_000_000  # 2026-01-01, UTC
_VARIANTS = 4  # different steps
_KEPT, _SEGMENT = 128 * KIB, 2 * MIB  # what the logger keeps in a step, and its segments
_PER_SEGMENT = _SEGMENT // _KEPT
_COMPUTE, _COMMUNICATION, _LOGGER = 0, 1, 2  # streams

_Operation = tuple[str, int, int, int]  # name of a tensor, bytes (0: free it), stream, row of its stack


def synthetic(events: int, seed: int = 0, *, out_of_memory: bool = False) -> Snapshot:
    """Return a history of exactly `events` entries; equal arguments give equal results.

    With `out_of_memory`, the last step fails: the history ends with the release of cached segments and an OOM entry,
    and lacks as many of its oldest entries.
    """
    program = _Program(max(2, min(24, events // 2_000)), seed)
    program.warm_up()
    marks = program.record_steps()
    begun, sizes = marks[0], np.diff(marks)
    chosen = np.random.default_rng(seed).integers(_VARIANTS, size=max(events // int(sizes.min()), 1))
    steps = np.arange(1, len(chosen) + 1)
    ends = begun + np.cumsum(sizes[chosen]) + steps + -(-steps // _PER_SEGMENT)  # with the logger's entries
    chosen = chosen[: np.searchsorted(ends, events, "right")]
    before = int(ends[len(chosen) - 1]) if len(chosen) else begun
    program.finish(events - before, out_of_memory=out_of_memory)

    base = program.snapshot()
    tail = base.trace[marks[-1] :]
    lengths = sizes[chosen]
    at = np.arange(lengths.sum()) + np.repeat(np.asarray(marks)[chosen] - (np.cumsum(lengths) - lengths), lengths)
    logger = _Logger(len(chosen), program.logger_stack, base)
    trace = np.concatenate([base.trace[:begun], base.trace[at], tail])
    trace = np.insert(trace, begun + np.cumsum(lengths)[logger.step], logger.entries)
    lost = max(len(trace) - events, 0)
    trace = trace[lost:]
    draws = np.random.default_rng(seed + 1).exponential(60, len(trace)).astype(np.uint64) + np.uint64(1)
    trace["time_ns"] = (np.uint64(_BEGIN_US) + np.cumsum(draws)) * np.uint64(1000)
    return replace(
        base,
        capacity=_CAPACITY,
        taken_at_ns=int(trace["time_ns"][-1]) if len(trace) else 0,
        segments=np.concatenate([base.segments, logger.segments]),
        blocks=np.concatenate([base.blocks, logger.blocks]),
        trace=trace,
        lost=lost,
    )


class _Logger:
    """The allocations of a logger on its stream: a block in every step, from segments of its own."""

    def __init__(self, steps: int, stack: int, base: Snapshot) -> None:
        begin = int((base.segments["address"] + base.segments["nbytes"]).max()) + (1 << 40)
        count = -(-steps // _PER_SEGMENT)
        kept = np.zeros(steps, ENTRY)
        kept["action"], kept["nbytes"] = Action.ALLOC, _KEPT
        kept["address"] = begin + _KEPT * np.arange(steps)
        reserved = np.zeros(count, ENTRY)
        reserved["action"], reserved["nbytes"] = Action.RESERVE, _SEGMENT
        reserved["address"] = begin + _SEGMENT * np.arange(count)
        self.step = np.concatenate([np.arange(count) * _PER_SEGMENT, np.arange(steps)])  # the step of each entry
        order = np.argsort(self.step, kind="stable")
        self.step, self.entries = self.step[order], np.concatenate([reserved, kept])[order]
        self.entries["queue"], self.entries["stack"] = _LOGGER, stack
        self.segments = np.zeros(count, SEGMENT)
        for column in ("address", "nbytes"):
            self.segments[column] = reserved[column]
        self.segments["queue"], self.segments["stack"], self.segments["small"] = _LOGGER, stack, 1
        rest = count * _PER_SEGMENT - steps
        self.blocks = np.zeros(steps + bool(rest), BLOCK)
        self.blocks["address"], self.blocks["nbytes"] = begin + _KEPT * np.arange(len(self.blocks)), _KEPT
        self.blocks["requested"], self.blocks["stack"], self.blocks["state"] = _KEPT, stack, State.LIVE
        self.blocks["segment"] = len(base.segments) + np.arange(len(self.blocks)) // _PER_SEGMENT
        if rest:
            self.blocks[-1] = (self.blocks["address"][-1], rest * _KEPT, 0, 0, len(base.segments) + count - 1, 0)


class _Program:
    """A training program on a simulated device, with the stack of each operation."""

    def __init__(self, layers: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._gpu = simulate.Device(_CAPACITY)
        self._gpu.record_history(context=None)
        self._pool = self._gpu.new_pool()
        self._live: dict[str, tuple[int, int]] = {}  # address and stack of each tensor
        self._done: list[int] = []  # the stack of each operation
        self._failed = 0  # the stack of the allocation that failed
        self._tree = _StackTree()
        self.logger_stack = self._tree.row("train.py:41 main", "train.py:77 train_step", "metrics.py:18 log_histogram")
        model = [self._random.choice((2, 4, 6, 8)) * MIB for _ in range(layers)]
        self._setup = [*chain.from_iterable(self._parameters(at, nbytes) for at, nbytes in enumerate(model))]
        self._variants = []
        for _ in range(_VARIANTS):
            scale = self._random.choice((0.5, 0.75, 1.0, 1.25))  # length of the sequences in the batch
            self._variants.append([*self._step(model, scale)])

    def warm_up(self) -> None:
        """Create the model and repeat all steps until they need no more segments."""
        self._execute(self._setup)
        reserved = -1
        while reserved != self._gpu.device_used:
            reserved = self._gpu.device_used
            for step in self._variants:
                self._execute(step)

    def record_steps(self) -> list[int]:
        """Execute each step once, and return the row of the history at which each begins, and that of the end."""
        marks = [len(self._done)]
        for step in self._variants:
            self._execute(step)
            marks.append(len(self._done))
        trace = _without_marks(torch_pickle.snapshots(self._gpu.snapshot())[0].trace)
        begins = np.flatnonzero(np.isin(trace["action"], (Action.ALLOC, Action.FREE_REQUESTED)))
        return [int(begins[mark]) if mark < len(begins) else len(trace) for mark in marks]

    def finish(self, entries: int, *, out_of_memory: bool) -> None:
        """Begin one more step and stop after a number of entries."""
        operations = iter(self._variants[0])
        while entries > 0:
            operation = next(operations)
            if entries == 1 and not operation[1]:
                operation = ("last", 512, _COMPUTE, operation[3])
            self._execute([operation])
            entries -= 1 if operation[1] else 2
        if out_of_memory:
            self._failed = self._tree.row("train.py:41 main", "train.py:78 evaluate", "model.py:402 full_attention")
            with suppress(OutOfMemory):
                self._gpu.allocate(_CAPACITY)

    def snapshot(self) -> Snapshot:
        """Return the snapshot, with stacks."""
        (found,) = torch_pickle.snapshots(self._gpu.snapshot())
        trace = _without_marks(found.trace)
        action = trace["action"]
        operations = np.isin(action, (Action.ALLOC, Action.FREE_REQUESTED))
        trace["stack"][operations] = self._done
        begins, at = np.flatnonzero(operations), np.arange(len(trace))
        completed, reserved = action == Action.FREE_COMPLETED, action == Action.RESERVE
        trace["stack"][completed] = trace["stack"][at[completed] - 1]
        trace["stack"][reserved] = trace["stack"][begins[np.searchsorted(begins, at[reserved])]]
        trace["stack"][action == Action.OOM] = self._failed
        blocks, segments = found.blocks, found.segments
        by_address = dict(self._live.values())
        blocks["stack"] = [by_address.get(address, 0) for address in blocks["address"].tolist()]
        by_segment = dict(zip(trace["address"][reserved].tolist(), trace["stack"][reserved].tolist(), strict=True))
        segments["stack"] = [by_segment[address] for address in segments["address"].tolist()]
        stacks, frames, strings = self._tree.tables()
        return replace(found, trace=trace, stacks=stacks, frames=frames, strings=strings)

    def _execute(self, operations: list[_Operation]) -> None:
        gpu, live = self._gpu, self._live
        for name, nbytes, stream, stack in operations:
            self._done.append(stack)
            if not nbytes:
                gpu.free(live.pop(name)[0])
            elif name.startswith("graph"):
                with gpu.use_pool(self._pool):
                    live[name] = gpu.allocate(nbytes, stream), stack
            else:
                live[name] = gpu.allocate(nbytes, stream), stack

    def _parameters(self, layer: int, nbytes: int) -> Iterator[_Operation]:
        build = self._tree.row("train.py:41 main", "model.py:12 build", f"model.py:{30 + layer} layer_{layer}")
        adam = self._tree.row("train.py:41 main", "train.py:60 configure", f"optim/adam.py:{90 + layer} _init_group")
        yield f"weight {layer}", nbytes, _COMPUTE, build
        yield f"norm {layer}", 16 * KIB, _COMPUTE, build
        yield f"exp_avg {layer}", nbytes, _COMPUTE, adam
        yield f"exp_avg_sq {layer}", nbytes, _COMPUTE, adam

    def _step(self, model: list[int], scale: float) -> Iterator[_Operation]:
        """Yield the operations of one step; all tensors that it allocates are freed again."""
        yield from self._batch(scale)
        for layer, weight in enumerate(model):
            yield from self._forward(layer, int(weight * scale) + 512 * self._random.randrange(64))
        for layer in reversed(range(len(model))):
            yield from self._backward(layer, model[layer])
        for layer, weight in enumerate(model):
            yield from self._update(layer, weight)
        data = self._tree.row("train.py:41 main", "train.py:79 train_step")
        yield from ((name, 0, _COMPUTE, data) for name in ("batch", "labels", "loss", "graph input"))

    def _batch(self, scale: float) -> Iterator[_Operation]:
        load = self._tree.row(
            "train.py:41 main", "train.py:70 train_step", "data/loader.py:201 __next__", "data/pin.py:9 to"
        )
        embed = self._tree.row("train.py:41 main", "train.py:72 train_step", "cuda/graphs.py:101 replay")
        yield "batch", int(3 * MIB * scale), _COMPUTE, load
        yield "labels", int(96 * KIB * scale), _COMPUTE, load
        yield "loss", 4, _COMPUTE, load
        yield "graph input", 3 * MIB, _COMPUTE, embed
        yield "graph hidden", 2 * MIB, _COMPUTE, embed
        yield "graph hidden", 0, _COMPUTE, embed

    def _forward(self, layer: int, nbytes: int) -> Iterator[_Operation]:
        stack = [self._operation("forward", layer, each) for each in ("linear", "softmax", "dropout", "layer_norm")]
        yield f"q {layer}", nbytes, _COMPUTE, stack[0]
        yield f"workspace {layer}", 8 * MIB, _COMPUTE, stack[0]
        yield f"workspace {layer}", 0, _COMPUTE, stack[0]
        yield f"scores {layer}", 2 * nbytes, _COMPUTE, stack[1]
        yield f"mask {layer}", nbytes // 8, _COMPUTE, stack[2]
        yield f"dropped {layer}", 2 * nbytes, _COMPUTE, stack[2]
        yield f"mean {layer}", 4 * KIB, _COMPUTE, stack[3]
        yield f"dropped {layer}", 0, _COMPUTE, stack[3]

    def _backward(self, layer: int, weight: int) -> Iterator[_Operation]:
        stack = [self._operation("backward", layer, each) for each in ("linear", "softmax", "dropout", "layer_norm")]
        yield f"grad out {layer}", weight, _COMPUTE, stack[3]
        yield f"mean {layer}", 0, _COMPUTE, stack[3]
        yield f"mask {layer}", 0, _COMPUTE, stack[2]
        yield f"grad scores {layer}", 2 * weight, _COMPUTE, stack[1]
        yield f"scores {layer}", 0, _COMPUTE, stack[1]
        yield f"grad {layer}", weight, _COMPUTE, stack[0]
        yield f"grad scores {layer}", 0, _COMPUTE, stack[0]
        yield f"q {layer}", 0, _COMPUTE, stack[0]
        yield f"grad out {layer}", 0, _COMPUTE, stack[0]
        if layer % 4 == 0:
            reduce = self._tree.row(
                "train.py:41 main", "train.py:75 train_step", f"ddp.py:{300 + layer} _reduce_bucket"
            )
            yield f"bucket {layer}", 4 * weight, _COMMUNICATION, reduce
            yield f"bucket {layer}", 0, _COMMUNICATION, reduce

    def _update(self, layer: int, weight: int) -> Iterator[_Operation]:
        stack = self._operation("step", layer, "adam")
        yield f"denominator {layer}", weight, _COMPUTE, stack
        yield f"denominator {layer}", 0, _COMPUTE, stack
        yield f"grad {layer}", 0, _COMPUTE, self._operation("zero_grad", layer, "adam")

    def _operation(self, phase: str, layer: int, name: str) -> int:
        calls = [
            f"torch/nn/modules/module.py:{line} {call}"
            for line, call in ((1773, "_wrapped_call_impl"), (1784, "_call_impl"))
        ]
        return self._tree.row(
            "train.py:41 main", f"train.py:{73 + len(phase)} train_step", *calls, f"model.py:{70 + 4 * layer} {phase}",
            *calls, f"blocks.py:{20 + 3 * layer} {name}_{phase}",
            f"torch/nn/functional.py:{1000 + 10 * len(name)} {name}", f"??:0 at::native::{name}_{phase}",
        )  # fmt: skip


def _without_marks(trace: NDArray[np.void]) -> NDArray[np.void]:
    """Return the history without the entries that taking it adds."""
    return trace[trace["action"] != Action.SNAPSHOT]


class _StackTree:
    """The tables of stacks, frames and strings."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}

    def row(self, *calls: str) -> int:
        """Return the row of a stack of `file:line name` calls, outermost first."""
        row = 0
        for call in calls:
            place, _, name = call.partition(" ")
            file, _, line = place.rpartition(":")
            words = [self._strings.setdefault(text, len(self._strings)) for text in (file, name)]
            frame = self._frames.setdefault((words[0], words[1], int(line)), len(self._frames))
            row = self._stacks.setdefault((row, frame), len(self._stacks) + 1)
        return row

    def tables(self) -> tuple[NDArray[np.void], NDArray[np.void], tuple[str, ...]]:
        return np.array([(0, 0), *self._stacks], STACK), np.array([*self._frames], FRAME), tuple(self._strings)
