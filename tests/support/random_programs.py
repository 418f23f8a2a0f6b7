"""Random programs of device operations for `side_by_side`."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from random import Random
from typing import Any

from support.side_by_side import Operation

__all__ = ["BOUNDARIES", "program", "random_settings"]

_MIB = 1 << 20
BOUNDARIES = (
    *(1, 511, 512, 513, _MIB - 512, _MIB - 1, _MIB, _MIB + 1, 2 * _MIB - 1, 2 * _MIB, 10 * _MIB - 512, 10 * _MIB - 1),
    *(10 * _MIB, 10 * _MIB + 1, 12 * _MIB, 19 * _MIB, 20 * _MIB, 20 * _MIB + 1, 21 * _MIB, 40 * _MIB, 64 * _MIB),
)
_EXCESSIVE = (1 << 40, (1 << 60) - 1, 1 << 60, 1 << 62)
_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "snapshot")


# Keys with their probabilities and random values; `large` is the `large_segment_size_mb` in force.
_KEYS: tuple[tuple[str, float, Callable[[Random, int], object]], ...] = (
    ("max_split_size_mb", 0.4, lambda chance, large: large + chance.choice((0, 1, 5, 20, 100))),
    ("max_non_split_rounding_mb", 0.3, lambda chance, large: large + chance.choice((0, 3, 20, 200))),
    ("garbage_collection_threshold", 0.3, lambda chance, _: chance.choice((0.05, 0.3, 0.6, 0.9))),
    ("roundup_power2_divisions", 0.4, lambda chance, _: _divisions(chance)),
    ("expandable_segments", 0.5, lambda chance, _: chance.choice((True, True, False))),
    ("expandable_segments_reserve", 0.2, lambda chance, _: chance.choice(("0.1", "0.5", "2.0", "1G", "0.05G"))),
    ("throw_on_cudamalloc_oom", 0.15, lambda chance, _: chance.choice((True, False))),
    ("per_process_memory_fraction", 0.25, lambda chance, _: chance.choice((0.3, 0.7, 0.95, 1.0))),
)


def random_settings(chance: Random, large: int = 20) -> tuple[str, int]:
    """Return a valid settings text and the `large_segment_size_mb` from then on.

    That value persists between texts and is a lower bound for other keys. It is even: pages are multiples of 2 MiB.
    """
    entries = []
    if chance.random() < 0.25:
        entries.append(f"large_segment_size_mb:{(large := chance.choice((12, 16, 30, 40)))}")
    entries += [f"{key}:{value(chance, large)}" for key, likely, value in _KEYS if chance.random() < likely]
    chance.shuffle(entries)
    return ",".join(entries), large


def _divisions(chance: Random) -> str:
    numbers = [0, 1, 2, 4, 8, 16, 64]
    if chance.random() < 0.5:
        return str(chance.choice(numbers[1:]))
    bounds = sorted(chance.sample([1 << power for power in range(12)], chance.randrange(1, 4)))
    return "[" + ",".join(f"{bound}:{chance.choice(numbers)}" for bound in [*bounds, ">"]) + "]"


class _ProgramWriter:
    """Writes a program and keeps track of the objects that it can use."""

    def __init__(self, chance: Random, total: int, large: int) -> None:
        self.chance, self.total, self.large = chance, total, large
        self.written: list[Operation] = []
        self.blocks: list[int] = []
        self.pools: list[int] = []
        self.graphs: list[int] = []
        self.entered: list[int] = []
        self.streams = chance.choice((1, 1, 2, 6))  # besides the default one
        self.max_blocks = chance.choice((8, 25, 60))  # live at a time
        self.largest = log2(total) - chance.choice((1, 3, 4, 5, 8))  # power of 2
        # Probabilities of operations other than allocations and frees
        self.uses = chance.choice((0.0, 0.02, 0.15))
        self.holds = chance.choice((0.0, 0.01, 0.05))
        self.private = chance.choice((0.0, 0.01, 0.04))
        self.environment = chance.choice((0.002, 0.02))

    def write(self, *operation: Any) -> int:
        self.written.append(operation)
        return len(self.written) - 1

    def stream(self) -> int:
        return self.chance.randrange(1 + self.streams)

    def size(self) -> int:
        at = self.chance.random()
        if at < 0.1:
            return self.chance.choice(BOUNDARIES)
        if at < 0.105:
            return self.chance.choice(_EXCESSIVE)
        return 0 if at < 0.107 else int(2 ** self.chance.uniform(0, self.largest))

    def step(self) -> None:
        at = self.chance.random()
        for probability, act in (
            (self.uses, self.record_stream),
            (self.holds, self.hold),
            (self.private, self.pool),
            (self.private / 2, self.graph),
            (self.environment, self.change_environment),
            (0.004, self.inspect),
        ):
            if at < probability:
                act()
                return
            at -= probability
        if self.blocks and self.chance.random() < len(self.blocks) / (2 * self.max_blocks):
            self.write("free", self.blocks.pop(self.chance.randrange(len(self.blocks))))
        else:
            self.blocks.append(self.write("allocate", self.size(), self.stream()))

    def record_stream(self) -> None:
        if self.blocks:
            self.write("record_stream", self.chance.choice(self.blocks), self.stream())

    def hold(self) -> None:
        match self.chance.randrange(6):
            case 0 | 1:
                self.write("hold_events", self.chance.choice((1, 1, 2)))
            case 2 | 3:
                self.write("release_events", self.stream())
            case 4:
                self.write("release_events")
            case _:
                self.write("synchronize", self.chance.choice((None, self.stream())))

    def pool(self) -> None:
        at = self.chance.random()
        if at < 0.2 or not self.pools:
            if len(self.pools) < 4:
                flags = {name: self.chance.random() < 0.4 for name in ("use_on_oom", "no_split")}
                self.pools.append(self.write("new_pool", flags))
        elif at < 0.3:
            pool = self.pools.pop(self.chance.randrange(len(self.pools)))
            self.write("release_pool", pool)
        elif at < 0.65 and self.entered:
            self.write("leave", self.entered.pop(self.chance.randrange(len(self.entered))))
        else:
            pool = self.chance.choice(self.pools)
            if pool not in self.entered:
                self.entered.append(pool)
            self.write("enter", pool)

    def graph(self) -> None:
        at = self.chance.random()
        if at < 0.4:
            shared = [None, None, *self.pools, *self.graphs]
            stream = 1 + self.chance.randrange(self.streams)  # PyTorch captures no default stream
            self.graphs.append(self.write("begin_capture", stream, self.chance.choice(shared)))
        elif at < 0.8:
            self.write("end_capture")
        elif self.graphs:
            self.write("release_capture", self.graphs.pop(self.chance.randrange(len(self.graphs))))

    def change_environment(self) -> None:
        match self.chance.randrange(9):
            case 0 | 1 | 2:
                self.write("empty_cache")
            case 3:
                self.write("fail_next", self.chance.randrange(4))
            case 4:
                self.write("set_other_used", int(self.total * self.chance.choice((0, 0, 0, 0.1, 0.2, 0.5))))
            case 5:
                self.write("set_memory_fraction", self.chance.choice((1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.4, 0.0, 1.5)))
            case 6:
                self.write("reset_peak_stats")
            case 7:
                self.write("reset_accumulated_stats")
            case _:
                self.change_settings()

    def change_settings(self) -> None:
        text, self.large = random_settings(self.chance, self.large)
        self.write("apply_settings", text)

    def inspect(self) -> None:
        if self.chance.random() < 0.5:
            self.write("memory_info")
            return
        options: dict[str, Any] = {
            "context": None,
            "enabled": self.chance.choice(("all", "all", "state", None, "some")),
        }
        options["max_entries"] = self.chance.choice((0, 1, 10, 100, 1000))
        if self.chance.random() < 0.3:
            options["skip_actions"] = self.chance.sample(_ACTIONS, 2)
        if self.chance.random() < 0.3:
            options["clear_history"] = True
        self.write("record_history", options)


def program(seed: int, steps: int) -> tuple[int, str, list[Operation]]:
    """Return total memory, initial settings and operations; the settings change halfway."""
    chance = Random(seed)
    total = chance.choice((32, 100, 256, 700, 4000)) * _MIB
    settings, large = random_settings(chance)
    writer = _ProgramWriter(chance, total, large)
    if chance.random() < 0.5:
        writer.write("record_history", {"context": None, "max_entries": 200})
    while len(writer.written) < steps // 2:
        writer.step()
    writer.change_settings()
    while len(writer.written) < steps:
        writer.step()
    return total, settings, writer.written
