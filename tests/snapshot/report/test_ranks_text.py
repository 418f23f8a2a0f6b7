"""The text of a comparison of ranks."""

from __future__ import annotations

from dataclasses import replace

from support.snapshot_scenes import MIB, Scene, training

from forebay.snapshot.analysis.ranks import Outlier, Ranks, SiteSkew, Unreadable, rank_of
from forebay.snapshot.report.ranks_text import ranks_paragraphs


def rank(name: str, nbytes: int):
    made = Scene()
    made.allocate(nbytes, made.stack("a.py:1 f"))
    return rank_of(made.snapshot(), name)


def text(found: Ranks, **options) -> str:
    lines = []
    for part in ranks_paragraphs(found, **options):
        lines += [part.heading, " ".join(part.sentences), *(" | ".join(row) for row in part.rows)]
    return "\n".join(lines)


def test_all_parts_are_described():
    low, high = rank("rank0", MIB), rank("rank1", 3 * MIB)
    failed = rank_of(training(), "rank2")
    outlier = Outlier(high, 2 * MIB, "a.py:1 f", 3 * MIB, MIB)
    words = text(Ranks((low, high, failed), (Unreadable("bad\x1b", "why"),), MIB, (outlier,)))
    assert "The median of the peaks of live memory is 1.00 MiB." in words
    assert "the lowest 1.00 MiB in rank0" in words
    assert "1 rank ran out of memory." in words
    assert "rank1 | 3.00 MiB | +2.00 MiB | a.py:1 f | +2.00 MiB" in words
    assert "rank2 | 1 | 200.00 MiB | " in words
    assert "1 file could not be read, and is not counted.\nbad\\x1b | why" in words


def test_few_ranks_and_none_are_described():
    assert "Its peak of live memory is 1.00 MiB. No rank ran out of memory." in text(
        Ranks((rank("a", MIB),), (), MIB, ())
    )
    assert "No rank could be read" in text(Ranks((), (Unreadable("a", "b"),), 0, ()))
    assert "No rank differs much from the median." in text(Ranks((rank("a", MIB), rank("b", MIB)), (), MIB, ()))


def test_long_tables_are_cut():
    ranks = tuple(replace(rank(f"rank{number}", MIB), ooms=1, lost=3) for number in range(30))
    words = text(Ranks(ranks, (), MIB, ()), rows=5)
    assert "The first 5 of 30 ranks." in words
    assert "The first 20 of 30 ranks that ran out of memory." in words
    assert "rank4 | 1.00 MiB | 0 B | 1.00 MiB | 64.00 MiB | 1 | 2+" in words
    assert "the ring buffer dropped the oldest entries" in words


def test_sites_that_differ_are_listed():
    sites = (SiteSkew("a.py:1 f", 0, MIB, 4 * MIB, "b"), SiteSkew("a.py:2 g", MIB, MIB, 2 * MIB, "a"))
    words = text(Ranks((rank("a", MIB), rank("b", 4 * MIB)), (), MIB, (), sites))
    assert "2 sites differ between the ranks, at the peak of each." in words
    assert "No site differs between the ranks" in text(Ranks((rank("a", MIB), rank("b", MIB)), (), MIB, ()))
    assert "Skew" not in text(Ranks((rank("a", MIB),), (), MIB, ()))
