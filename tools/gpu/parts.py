"""The parts of a run: their order, their limits, and which of them may use the GPU at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from gpu.part import Outcome

__all__ = ["MINUTES", "PARTS", "Part", "Result", "stages", "table_of_limits"]

MINUTES = 9.0  # of a run whose parts have the limits below


@dataclass(frozen=True)
class Part:
    """A part: the name of its module, its title, and its share of a run of `MINUTES` in seconds."""

    name: str
    title: str
    seconds: float
    required: bool = True  # for the entry of verified hardware; other parts may be left out
    compiled: bool = True  # needs forebay's modules; the others run before and while these are compiled
    alone: bool = False  # on the GPU: it measures memory or time, or compares the free memory before and after
    package: str = "gpu"  # of its module


PARTS = (
    Part("truth", "Memory of PyTorch programs", 205, required=False, compiled=False, alone=True),
    Part("workspaces", "Temporary memory of PyTorch's operators", 75, required=False, compiled=False, alone=True),
    Part("smoke", "Smoke test", 20, alone=True),
    Part("conformance", "Conformance suite", 90, alone=True),
    Part("scenes", "Recorded scenes of torch.cuda", 90),
    Part("random_numbers", "Random numbers beside PyTorch's", 90, required=False),
    Part("allocator_statistics", "Allocator statistics beside PyTorch's", 90, required=False),
    Part("graphs", "Graphs", 90),
    Part("interoperability", "Exchange and allocators with CuPy, Numba, PyTorch and RMM", 90, required=False),
    Part("benchmarks", "Benchmarks", 50, alone=True),
)


@dataclass(frozen=True)
class Result:
    """A part, what it found, and the seconds it took."""

    part: Part
    outcome: Outcome
    seconds: float


def stages(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield the parts that run side by side."""
    for alone, group in groupby(parts, key=lambda part: part.alone):
        found = list(group)
        yield from ([part] for part in found) if alone else [found]


def share(stage: Sequence[Part]) -> float:
    """Return the seconds of a stage in a run of `MINUTES`."""
    return max(part.seconds for part in stage)


def limit(stage: Sequence[Part], later: Sequence[Sequence[Part]], remaining: float) -> float:
    """Return the seconds that a stage may take of the time that remains.

    The remaining time is divided by the shares of this stage and of those after it, so that time which a part leaves
    over is available to all that follow, and a run ends in time however the parts before have spent theirs.
    """
    return remaining * share(stage) / (share(stage) + sum(map(share, later)))


def table_of_limits() -> list[str]:
    """Return the table of limits for the documentation."""
    lines = ["| part | seconds | beside others |", "|---|---|---|"]
    for stage in stages(PARTS):
        lines += [f"| {part.name} | {part.seconds:.0f} | {'yes' if len(stage) > 1 else 'no'} |" for part in stage]
    return lines
