"""Small stories to look at: snapshots written by a pretend allocator that bumps addresses and keeps its own books."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from forebay.snapshot.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Action, Snapshot, State

START = 1_767_225_600_000_000_000  # 2026-01-01, UTC
MIB = 1 << 20


@dataclass
class Scene:
    """A device with first-fit segments and a clock that the story moves; every step becomes an entry."""

    capacity: int = 16 << 30
    segment: int = 64 * MIB
    growing: bool = False  # segments come as pages, which may go again
    now: int = START
    entries: list[tuple[int, ...]] = field(default_factory=list)
    segments: dict[int, int] = field(default_factory=dict)
    blocks: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # address: room, requested, stack
    strings: dict[str, int] = field(default_factory=dict)
    frames: dict[tuple[int, int, int], int] = field(default_factory=dict)
    stacks: dict[tuple[int, int], int] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)  # address: free bytes

    def stack(self, *calls: str) -> int:
        """The stack of `file:line name` calls, outermost first."""
        row = 0
        for call in calls:
            file, line, name = re.fullmatch(r"(.*?):(\d+) (.*)", call, re.DOTALL).groups()
            words = [self.strings.setdefault(text, len(self.strings)) for text in (file, name)]
            frame = self.frames.setdefault((*words, int(line)), len(self.frames))
            row = self.stacks.setdefault((row, frame), len(self.stacks) + 1)
        return row

    def tick(self, ns: int = 1000) -> None:
        self.now += ns

    def note(self, action: Action, address: int, nbytes: int, stack: int = 0) -> None:
        self.entries.append((self.now, address, nbytes, 0, stack, action, 0, 0))

    def take(self, nbytes: int, stack: int = 0) -> int:
        room = -(-nbytes // 512) * 512
        address = next((at for at, free in self.holes.items() if free >= room), None)
        if address is None:
            size = max(self.segment, -(-room // (2 * MIB)) * 2 * MIB)
            if sum(self.segments.values()) + size > self.capacity:
                self.note(Action.OOM, self.capacity - sum(self.segments.values()), room, stack)
                raise MemoryError
            address = max((at + n for at, n in self.segments.items()), default=1 << 44) + 2 * MIB
            self.segments[address] = self.holes[address] = size
            self.note(Action.MAP if self.growing else Action.RESERVE, address, size, stack)
        left = self.holes.pop(address) - room
        if left:
            self.holes[address + room] = left
        self.blocks[address] = room, nbytes, stack
        self.note(Action.TAKE, address, nbytes, stack)
        return address

    def give(self, address: int, stack: int = 0) -> None:
        room, nbytes, _ = self.blocks.pop(address)
        self.note(Action.GIVE, address, nbytes, stack)
        self.note(Action.GIVEN, address, nbytes, stack)
        self.holes[address] = room
        for at in sorted(self.holes):  # merge with the neighbours, but not across segments
            while at in self.holes and (end := at + self.holes[at]) in self.holes and end not in self.segments:
                self.holes[at] += self.holes.pop(end)

    def shrink(self) -> None:
        """Whole free segments go."""
        for address, size in list(self.segments.items()):
            if self.holes.get(address) == size:
                del self.segments[address], self.holes[address]
                self.note(Action.UNMAP if self.growing else Action.RELEASE, address, size)

    def snapshot(self, lost: int = 0, recorded: bool = True, **fields: Any) -> Snapshot:
        """What is there now; `lost` forgets the oldest entries as a full ring does."""
        homes = sorted(self.segments)
        rows = [(at, room, asked, stack, State.LIVE) for at, (room, asked, stack) in self.blocks.items()]
        rows += [(at, free, 0, 0, State.FREE) for at, free in self.holes.items()]
        blocks = [
            (at, room, asked, stack if recorded else 0, int(np.searchsorted(homes, at, "right")) - 1, state)
            for at, room, asked, stack, state in sorted(rows)
        ]
        return Snapshot(
            **{"device": "host:0", "capacity": self.capacity, "taken_at_ns": self.now, "lost": lost} | fields,
            segments=np.array([(at, self.segments[at], 0, 0, 0, 0, self.growing) for at in homes], SEGMENT),
            blocks=np.array(blocks, BLOCK),
            trace=np.array(self.entries[lost:] if recorded else [], ENTRY),
            stacks=np.array([(0, 0), *self.stacks], STACK),
            frames=np.array([(file, name, line) for file, name, line in self.frames], FRAME),
            strings=tuple(self.strings),
        )


steps = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * MIB)), max_size=60)


def told(steps: list[tuple[int, int]], lost: float = 0.0, growing: bool = False) -> Snapshot:
    """A random history: a step gives the block in its place back, or takes one of its size; a few are looked at."""
    scene, held = Scene(segment=4 * MIB, capacity=64 * MIB, growing=growing), {}
    for place, nbytes in steps:
        scene.tick(nbytes)
        if place in held:
            scene.give(held.pop(place))
            if nbytes % 4 == 0:
                scene.shrink()
        elif nbytes % 8 == 1:
            scene.note(Action.LOOK, 0, sum(room for room, *_ in scene.blocks.values()))
        else:
            held[place] = scene.take(nbytes, scene.stack(f"app.py:{place} work"))
    return scene.snapshot(lost=int(lost * len(scene.entries)))


def training(steps: int = 20, layers: int = 8, capacity: int = 4 << 30) -> Snapshot:
    """Weights, activations and gradients that come and go, a list of losses that only grows, and the end of memory."""
    scene, random = Scene(capacity=capacity), np.random.default_rng(7)
    home = "/home/ada/projects/tiny-lm/"
    main = f"{home}train.py:118 main"
    weights = scene.stack(main, f"{home}model/transformer.py:31 Block.__init__")
    embedding = scene.stack(
        main,
        f"{home}model/embedding.py:17 Embedding.__init__",
        "/venv/lib/python3.11/site-packages/numpy/lib/npyio.py:460 load",
    )
    attention = scene.stack(main, f"{home}train.py:74 step", f"{home}model/attention.py:58 scores")
    hidden = scene.stack(main, f"{home}train.py:74 step", f"{home}model/mlp.py:22 forward")
    norm = scene.stack(main, f"{home}train.py:74 step", f"{home}model/norm.py:12 rms_norm")
    dropout = scene.stack(main, f"{home}train.py:74 step", f"{home}model/transformer.py:49 dropout")
    gradient = scene.stack(main, f"{home}train.py:77 step", f"{home}engine/autograd.py:203 backward")
    moments = scene.stack(main, f"{home}train.py:112 main", f"{home}engine/adamw.py:39 AdamW.__init__")
    batch = scene.stack(main, f"{home}train.py:70 step", f"{home}data/loader.py:88 next_batch")
    logits = scene.stack(main, f"{home}train.py:75 step", f"{home}model/head.py:19 project")
    leak = scene.stack(main, f"{home}train.py:81 step", f"{home}engine/metrics.py:27 History.append")
    scratch = scene.stack(main, f"{home}train.py:78 step", f"{home}engine/clip.py:14 clip_norm")
    scene.take(192 * MIB, embedding)
    for _ in range(layers):
        scene.tick(9_000_000)
        scene.take(48 * MIB, weights)
        scene.take(24 * MIB, weights)
    for _ in range(2 * layers):
        scene.tick(3_000_000)
        scene.take(72 * MIB // 2, moments)
    try:
        for _ in range(steps):
            length = float(random.choice([0.6, 0.8, 1.0, 1.25]))
            inputs = [scene.take(int(18 * MIB * length), batch)]
            acts = []
            for _ in range(layers):
                for stack, mib in ((norm, 6), (attention, 44), (hidden, 36), (dropout, 10)):
                    scene.tick(int(random.integers(600_000, 1_400_000)))
                    acts.append(scene.take(int(mib * MIB * length) + int(random.integers(0, 4096)), stack))
            top = scene.take(int(160 * MIB * length), logits)
            scene.take(34 * MIB, leak)
            grads = []
            for _ in range(layers):
                for stack in range(4):
                    scene.tick(int(random.integers(900_000, 2_200_000)))
                    if stack == 0:
                        grads.append(scene.take(72 * MIB, gradient))
                    scene.give(acts.pop())
                if top:
                    scene.give(top)
                    top = 0
            for _ in range(6):
                piece = scene.take(12 * MIB, scratch)
                scene.tick(400_000)
                scene.give(piece)
            for address in [*grads, *inputs]:
                scene.tick(250_000)
                scene.give(address)
            scene.tick(4_000_000)
    except MemoryError:
        scene.tick(20_000_000)
    notes = {
        "program": "train.py --config small.toml --steps 20",
        "python": "3.11.7",
        "forebay": "0.1.0",
        "numpy": "2.4.6",
    }
    return scene.snapshot(notes=MappingProxyType(notes))


def long_run(entries: int = 1_001_500, sites: int = 300) -> Snapshot:
    """A big history made without a loop: every slot of an arena is taken and given, over and over."""
    random, slots = np.random.default_rng(3), 2000
    trace = np.zeros(entries, ENTRY)
    # All slots are taken, one after the other, and then all given back: so 2,000 are live where the two meet.
    taken = (np.arange(entries) // slots) % 2 == 0
    slot = np.arange(entries) % slots
    size = (random.integers(1, 64, slots) * 4096)[slot]
    idle = 40 * 10**9 * (np.arange(entries) > entries // 2)
    trace["time_ns"] = START + np.cumsum(random.integers(200, 20_000, entries)) + idle
    trace["address"], trace["nbytes"] = (1 << 44) + slot * (1 << 18), size
    trace["stack"] = np.where(taken, 1 + slot % sites, 0)
    trace["action"] = np.where(taken, Action.TAKE, Action.GIVE)
    # The last round is half done, so some slots are live; a slot is 256 KiB and its block fills it.
    blocks = np.zeros(slots, BLOCK)
    blocks["address"], blocks["nbytes"] = (1 << 44) + np.arange(slots) * (1 << 18), 1 << 18
    live = trace[entries - entries % (2 * slots) :]
    live = live[live["action"] == Action.TAKE]
    blocks["requested"][: len(live)], blocks["stack"][: len(live)] = live["nbytes"], live["stack"]
    blocks["state"][: len(live)] = State.LIVE
    return Snapshot(
        device="host:0", capacity=1 << 34, taken_at_ns=int(trace["time_ns"][-1]), blocks=blocks, trace=trace, lost=12,
        segments=np.array([(1 << 44, slots << 18, 0, 0, 0, 0, 0)], SEGMENT),
        stacks=np.array([(0, 0), *((0, i) for i in range(sites))], STACK),
        frames=np.array([(i % 7, 7 + i % 31, 10 + i) for i in range(sites)], FRAME),
        strings=(*(f"/srv/app/part{i}.py" for i in range(7)), *(f"function_{i}" for i in range(31))),
    )  # fmt: skip
