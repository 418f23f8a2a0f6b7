"""Analyses of files whose tables are consistent, but whose history contradicts itself or the final state."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Action, Snapshot
from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.analysis.ranks import rank_of
from forebay.snapshot.formats import native
from forebay.snapshot.report.comparison_text import comparison_paragraphs
from forebay.snapshot.report.explanation import explanation
from forebay.snapshot.report.explanation_text import paragraphs

MIB = 1 << 20


def random_tables(seed: int) -> Snapshot:
    """Return a snapshot that the readers accept, with entries, segments and blocks at random."""
    rng = np.random.default_rng(seed)

    def choice(*values: int) -> int:
        return values[rng.integers(len(values))]

    entries, base, huge = int(rng.integers(60)), choice(0, MIB, 1 << 44), choice(7, 7, 1 << 57)
    trace = np.zeros(entries, ENTRY)
    trace["action"] = rng.integers(min(Action), max(Action) + 1, entries)
    trace["address"] = base + rng.integers(40, size=entries) * choice(1, 512, MIB, 2 * MIB)
    trace["nbytes"] = rng.choice([0, 1, 511, 512, MIB, 2 * MIB, 20 * MIB, huge], entries)
    trace["address"][trace["action"] == Action.OOM] = choice(0, MIB, (1 << 64) - 1)
    for name in ("queue", "pool", "stack"):
        trace[name] = rng.integers(3, size=entries)
    segments, blocks, end = [], [], base
    for number in range(rng.integers(4)):
        size, begin = choice(512, 2 * MIB, 20 * MIB), end + choice(0, 2 * MIB)
        end = begin + size
        segments.append((begin, size, *rng.integers(3, size=1), 0, choice(0, 1), choice(0, 1), choice(0, 1)))
        edges = np.unique(np.append(rng.integers(size // 512 + 1, size=6) * 512, [0, size]))
        for at, stop in zip(edges.tolist(), edges[1:].tolist(), strict=False):
            blocks.append((begin + at, stop - at, choice(0, 1, 3 * size), choice(0, 1, 3), number, choice(0, 1, 2)))
    return Snapshot(
        device="cuda:0", capacity=choice(0, 1 << 30, 1 << 62), taken_at_ns=5,
        segments=np.array(segments, SEGMENT), blocks=np.array(blocks, BLOCK), trace=trace,
        stacks=np.array([(0, 0), (0, 0), (1, 1), (0, 1)], STACK), frames=np.array([(0, 1, 5), (2, 3, 7)], FRAME),
        strings=("a.py", "f", "b\x1b.py", "g"),
        notes={"allocator_settings": {"expandable_segments": seed % 2 == 0, "max_split_size": choice(-1, 20 * MIB)}},
    )  # fmt: skip


def accepted(first: int, count: int) -> Iterator[Snapshot]:
    for seed in range(first, first + count):
        snapshot = random_tables(seed)
        native.check(snapshot)
        yield snapshot


@pytest.mark.parametrize("first", [0, 1000])
def test_contradictory_histories_are_explained_and_compared(first):
    other = random_tables(first)
    for number, snapshot in enumerate(accepted(first, 150)):
        found = explanation(snapshot, replay=number % 5 == 0)
        use = found.use
        parts = use.live, use.rounding, use.pending, use.cached, use.fragmented
        assert sum(parts) == use.reserved
        assert min(parts) >= 0
        json.dumps(found.as_json())
        words = [*paragraphs(found), *comparison_paragraphs(compare(other, snapshot))]
        assert "\x1b" not in "".join(
            str(cell) for part in words for row in (part.sentences, *part.rows) for cell in row
        )
        assert rank_of(snapshot, "rank").peak >= 0
