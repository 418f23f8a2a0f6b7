"""Synthetic snapshots made by a simple first-fit allocator that is independent of forebay's."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Action, Snapshot, State

START = 1_767_225_600_000_000_000  # 2026-01-01, UTC
MIB = 1 << 20


@dataclass
class Scene:
    """A device with first-fit segments and a manual clock. Each operation adds a history entry."""

    capacity: int = 16 << 30
    segment: int = 64 * MIB
    growing: bool = False  # segments are expandable: mapped and unmapped pages
    now: int = START
    entries: list[tuple[int, ...]] = field(default_factory=list)
    segments: dict[int, int] = field(default_factory=dict)
    blocks: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by address: size, requested, stack
    strings: dict[str, int] = field(default_factory=dict)
    frames: dict[tuple[int, int, int], int] = field(default_factory=dict)
    stacks: dict[tuple[int, int], int] = field(default_factory=dict)
    free_ranges: dict[int, int] = field(default_factory=dict)  # free bytes by address

    def stack(self, *calls: str) -> int:
        """Return the stack of `file:line name` calls, outermost first."""
        row = 0
        for call in calls:
            file, line, name = re.fullmatch(r"(.*?):(\d+) (.*)", call, re.DOTALL).groups()
            words = [self.strings.setdefault(text, len(self.strings)) for text in (file, name)]
            frame = self.frames.setdefault((*words, int(line)), len(self.frames))
            row = self.stacks.setdefault((row, frame), len(self.stacks) + 1)
        return row

    def advance(self, ns: int = 1000) -> None:
        self.now += ns

    def record(self, action: Action, address: int, nbytes: int, stack: int = 0) -> None:
        self.entries.append((self.now, address, nbytes, 0, stack, action, 0, 0))

    def allocate(self, nbytes: int, stack: int = 0) -> int:
        rounded = -(-nbytes // 512) * 512
        address = next((at for at, free in self.free_ranges.items() if free >= rounded), None)
        if address is None:
            size = max(self.segment, -(-rounded // (2 * MIB)) * 2 * MIB)
            if sum(self.segments.values()) + size > self.capacity:
                self.record(Action.OOM, self.capacity - sum(self.segments.values()), rounded, stack)
                raise MemoryError
            address = max((at + n for at, n in self.segments.items()), default=1 << 44) + 2 * MIB
            self.segments[address] = self.free_ranges[address] = size
            self.record(Action.MAP if self.growing else Action.RESERVE, address, size, stack)
        remainder = self.free_ranges.pop(address) - rounded
        if remainder:
            self.free_ranges[address + rounded] = remainder
        self.blocks[address] = rounded, nbytes, stack
        self.record(Action.ALLOC, address, nbytes, stack)
        return address

    def free(self, address: int, stack: int = 0) -> None:
        rounded, nbytes, _ = self.blocks.pop(address)
        self.record(Action.FREE_REQUESTED, address, nbytes, stack)
        self.record(Action.FREE_COMPLETED, address, nbytes, stack)
        ranges = self.free_ranges
        ranges[address] = rounded
        for at in sorted(ranges):  # merge neighbours within a segment
            while at in ranges and (end := at + ranges[at]) in ranges and end not in self.segments:
                ranges[at] += ranges.pop(end)

    def release_free_segments(self) -> None:
        """Release the segments that are completely free."""
        for address, size in list(self.segments.items()):
            if self.free_ranges.get(address) == size:
                del self.segments[address], self.free_ranges[address]
                self.record(Action.UNMAP if self.growing else Action.RELEASE, address, size)

    def snapshot(self, lost: int = 0, recorded: bool = True, **fields: Any) -> Snapshot:
        """Return a snapshot without the `lost` oldest entries, which a full ring buffer would have dropped."""
        addresses = sorted(self.segments)
        rows = [(at, rounded, requested, stack, State.LIVE) for at, (rounded, requested, stack) in self.blocks.items()]
        rows += [(at, free, 0, 0, State.FREE) for at, free in self.free_ranges.items()]
        blocks = [
            (at, rounded, requested, stack if recorded else 0, int(np.searchsorted(addresses, at, "right")) - 1, state)
            for at, rounded, requested, stack, state in sorted(rows)
        ]
        return Snapshot(
            **{"device": "cpu", "capacity": self.capacity, "taken_at_ns": self.now, "lost": lost} | fields,
            segments=np.array([(at, self.segments[at], 0, 0, 0, 0, self.growing) for at in addresses], SEGMENT),
            blocks=np.array(blocks, BLOCK),
            trace=np.array(self.entries[lost:] if recorded else [], ENTRY),
            stacks=np.array([(0, 0), *self.stacks], STACK),
            frames=np.array([(file, name, line) for file, name, line in self.frames], FRAME),
            strings=tuple(self.strings),
        )


steps = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * MIB)), max_size=60)


def random_history(steps: list[tuple[int, int]], lost: float = 0.0, growing: bool = False) -> Snapshot:
    """Return a random history. A step (slot, nbytes) frees a block, allocates one, or takes a snapshot."""
    scene, blocks = Scene(segment=4 * MIB, capacity=64 * MIB, growing=growing), {}
    for slot, nbytes in steps:
        scene.advance(nbytes)
        if slot in blocks:
            scene.free(blocks.pop(slot))
            if nbytes % 4 == 0:
                scene.release_free_segments()
        elif nbytes % 8 == 1:
            scene.record(Action.SNAPSHOT, 0, sum(rounded for rounded, *_ in scene.blocks.values()))
        else:
            blocks[slot] = scene.allocate(nbytes, scene.stack(f"app.py:{slot} work"))
    return scene.snapshot(lost=int(lost * len(scene.entries)))


def training(steps: int = 20, layers: int = 8, capacity: int = 4 << 30) -> Snapshot:
    """Return a training run: weights, activations, gradients, a leak, and finally an out-of-memory event."""
    scene, random = Scene(capacity=capacity), np.random.default_rng(7)
    folder = "/home/ada/projects/tiny-lm/"
    main = f"{folder}train.py:118 main"
    weights = scene.stack(main, f"{folder}model/transformer.py:31 Block.__init__")
    embedding = scene.stack(
        main,
        f"{folder}model/embedding.py:17 Embedding.__init__",
        "/venv/lib/python3.11/site-packages/numpy/lib/npyio.py:460 load",
    )
    attention = scene.stack(main, f"{folder}train.py:74 step", f"{folder}model/attention.py:58 scores")
    hidden = scene.stack(main, f"{folder}train.py:74 step", f"{folder}model/mlp.py:22 forward")
    norm = scene.stack(main, f"{folder}train.py:74 step", f"{folder}model/norm.py:12 rms_norm")
    dropout = scene.stack(main, f"{folder}train.py:74 step", f"{folder}model/transformer.py:49 dropout")
    gradient = scene.stack(main, f"{folder}train.py:77 step", f"{folder}engine/autograd.py:203 backward")
    moments = scene.stack(main, f"{folder}train.py:112 main", f"{folder}engine/adamw.py:39 AdamW.__init__")
    batch = scene.stack(main, f"{folder}train.py:70 step", f"{folder}data/loader.py:88 next_batch")
    logits = scene.stack(main, f"{folder}train.py:75 step", f"{folder}model/head.py:19 project")
    leak = scene.stack(main, f"{folder}train.py:81 step", f"{folder}engine/metrics.py:27 History.append")
    scratch = scene.stack(main, f"{folder}train.py:78 step", f"{folder}engine/clip.py:14 clip_norm")
    scene.allocate(192 * MIB, embedding)
    for _ in range(layers):
        scene.advance(9_000_000)
        scene.allocate(48 * MIB, weights)
        scene.allocate(24 * MIB, weights)
    for _ in range(2 * layers):
        scene.advance(3_000_000)
        scene.allocate(72 * MIB // 2, moments)
    try:
        for _ in range(steps):
            length = float(random.choice([0.6, 0.8, 1.0, 1.25]))
            inputs = [scene.allocate(int(18 * MIB * length), batch)]
            acts = []
            for _ in range(layers):
                for stack, mib in ((norm, 6), (attention, 44), (hidden, 36), (dropout, 10)):
                    scene.advance(int(random.integers(600_000, 1_400_000)))
                    acts.append(scene.allocate(int(mib * MIB * length) + int(random.integers(0, 4096)), stack))
            top = scene.allocate(int(160 * MIB * length), logits)
            scene.allocate(34 * MIB, leak)
            grads = []
            for _ in range(layers):
                for stack in range(4):
                    scene.advance(int(random.integers(900_000, 2_200_000)))
                    if stack == 0:
                        grads.append(scene.allocate(72 * MIB, gradient))
                    scene.free(acts.pop())
                if top:
                    scene.free(top)
                    top = 0
            for _ in range(6):
                piece = scene.allocate(12 * MIB, scratch)
                scene.advance(400_000)
                scene.free(piece)
            for address in [*grads, *inputs]:
                scene.advance(250_000)
                scene.free(address)
            scene.advance(4_000_000)
    except MemoryError:
        scene.advance(20_000_000)
    notes = {
        "program": "train.py --config small.toml --steps 20",
        "python": "3.11.7",
        "forebay": "0.1.0",
        "numpy": "2.4.6",
    }
    return scene.snapshot(notes=MappingProxyType(notes))


def long_run(entries: int = 1_001_500, sites: int = 300) -> Snapshot:
    """Return a large history, built without a loop: all slots of an arena are allocated and freed repeatedly."""
    random, slots = np.random.default_rng(3), 2000
    trace = np.zeros(entries, ENTRY)
    # All 2,000 slots are allocated one after the other, then all are freed.
    is_alloc = (np.arange(entries) // slots) % 2 == 0
    slot = np.arange(entries) % slots
    size = (random.integers(1, 64, slots) * 4096)[slot]
    idle = 40 * 10**9 * (np.arange(entries) > entries // 2)
    trace["time_ns"] = START + np.cumsum(random.integers(200, 20_000, entries)) + idle
    trace["address"], trace["nbytes"] = (1 << 44) + slot * (1 << 18), size
    trace["stack"] = np.where(is_alloc, 1 + slot % sites, 0)
    trace["action"] = np.where(is_alloc, Action.ALLOC, Action.FREE_REQUESTED)
    # The last round is incomplete, so some slots are live. A block fills its slot of 256 KiB.
    blocks = np.zeros(slots, BLOCK)
    blocks["address"], blocks["nbytes"] = (1 << 44) + np.arange(slots) * (1 << 18), 1 << 18
    live = trace[entries - entries % (2 * slots) :]
    live = live[live["action"] == Action.ALLOC]
    blocks["requested"][: len(live)], blocks["stack"][: len(live)] = live["nbytes"], live["stack"]
    blocks["state"][: len(live)] = State.LIVE
    return Snapshot(
        device="cpu", capacity=1 << 34, taken_at_ns=int(trace["time_ns"][-1]), blocks=blocks, trace=trace, lost=12,
        segments=np.array([(1 << 44, slots << 18, 0, 0, 0, 0, 0)], SEGMENT),
        stacks=np.array([(0, 0), *((0, i) for i in range(sites))], STACK),
        frames=np.array([(i % 7, 7 + i % 31, 10 + i) for i in range(sites)], FRAME),
        strings=(*(f"/srv/app/part{i}.py" for i in range(7)), *(f"function_{i}" for i in range(31))),
    )  # fmt: skip


def training_run() -> Scene:
    """Four weights, ten steps that free their activations, an OOM, and the free of a weight."""
    scene = Scene(capacity=256 * MIB)
    weights = scene.stack("/app/train.py:1 main", "/app/model.py:10 build")
    activations = scene.stack("/app/train.py:2 main", "/app/model.py:20 forward")
    kept = [scene.allocate(8 * MIB, weights) for _ in range(4)]
    for _ in range(10):
        scene.advance()
        scene.free(scene.allocate(16 * MIB, activations))
    with suppress(MemoryError):
        scene.allocate(1024 * MIB, activations)
    scene.free(kept[0])
    return scene
