"""Comparison of the ranks of a distributed program: one snapshot for each, their peaks, errors, skew and outliers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from forebay.errors import ForebayError
from forebay.records.model import Snapshot
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice
from forebay.records.sites import find_sites, with_split
from forebay.snapshot import load
from forebay.snapshot.analysis.summary import ooms, sites, summary
from forebay.snapshot.analysis.timeline import reconstruct

__all__ = ["Outlier", "Rank", "Ranks", "ReadRank", "SiteSkew", "Unreadable", "compare_ranks", "rank_of", "read_rank"]

_SITES = 200  # of a rank, with the most memory at the peak
_OUTLIER = 0.05  # difference from the median, in relation to it, from which on a rank is an outlier
_SKEWED = 0.01  # of the median peak, by which the memory of a site differs
_MAD = 3.5  # and in relation to the median of all differences
_NUMBERS = re.compile(r"([^0-9]*)([0-9]{0,18})")
_AT_ONCE = 2  # files for each worker that are read or wait


@dataclass(frozen=True, slots=True)
class Rank:
    """The figures of one rank, which is one device in one file. Sizes are in bytes."""

    name: str  #: name of the file, with the device if the file has several
    device: str  #: the device
    peak: int  #: peak of the live bytes
    end: int  #: live bytes at the end
    reserved: int  #: peak of the bytes in segments
    ooms: int  #: out-of-memory errors
    oom_wanted: int  #: bytes of the last request that failed; 0 if there is none in the history
    oom_label: str  #: site of that request; "" if there is none
    entries: int  #: length of the history
    lost: int  #: entries that the ring buffer dropped
    truncated: bool  #: whether the file is truncated
    sites: tuple[tuple[str, int], ...]  #: sites and their live bytes at the peak, most first; at most 200


class ReadRank(NamedTuple):
    """A rank whose sites are whole, and their lines: which ones are split depends on all ranks."""

    rank: Rank  #: the rank
    lines: Mapping[str, Sequence[tuple[str, int]]]  #: for sites with several lines in libraries: labels and live bytes

    def heavy(self) -> str:
        """Return the site with more than half of the peak; "" if there is none."""
        label, nbytes = self.rank.sites[0] if self.rank.sites else ("", 0)
        return label if nbytes > self.rank.peak / 2 else ""

    def split(self, labels: frozenset[str]) -> Rank:
        """Return the rank with some of its sites split."""
        parts = [
            part
            for site in self.rank.sites
            for part in (self.lines.get(site[0], [site]) if site[0] in labels else [site])
        ]
        return replace(self.rank, sites=tuple(sorted(parts, key=lambda part: -part[1])[:_SITES]))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be read."""

    name: str  #: its name
    reason: str  #: the error, in one line


@dataclass(frozen=True, slots=True)
class Outlier:
    """A rank whose peak differs from that of the others, and the site that differs most."""

    rank: Rank  #: the rank
    difference: int  #: its peak less the median of all peaks, in bytes
    label: str  #: the site with the largest difference in the same direction; "" if no site explains it
    site_bytes: int  #: live bytes of the site at the rank's peak
    site_median: int  #: median of the site's live bytes over all ranks, at their peaks


@dataclass(frozen=True, slots=True)
class SiteSkew:
    """The live memory of one site over all ranks, at the peak of each. Sizes are in bytes."""

    label: str  #: the site
    lowest: int  #: the least of all ranks; 0 where a rank has nothing of it
    median: int  #: the median
    highest: int  #: the most
    rank: str  #: name of the rank with the most

    @property
    def spread(self) -> int:
        """Difference of the most and the least."""
        return self.highest - self.lowest


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a program, compared."""

    ranks: tuple[Rank, ...]  #: the ranks, by name
    unreadable: tuple[Unreadable, ...]  #: the files that could not be read, by name
    median_peak: int  #: median of the peaks, in bytes; 0 without ranks
    #: Ranks that differ from the median by more than 5 % and clearly more than most others, largest difference first.
    outliers: tuple[Outlier, ...]
    #: Sites whose memory differs by 1 % of the median peak or more, most first; empty by default.
    sites: tuple[SiteSkew, ...] = ()

    @property
    def skew(self) -> float:
        """The highest peak divided by the mean of all peaks; 1 if all are equal or 0."""
        total = sum(rank.peak for rank in self.ranks)
        return max(rank.peak for rank in self.ranks) * len(self.ranks) / total if total else 1.0


def rank_of(snapshot: Snapshot, name: str) -> Rank:
    """Return the figures of one snapshot as a rank.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    name : str
        The name of the rank.
    """
    timeline = reconstruct(snapshot)
    numbers = summary(snapshot, timeline=timeline)
    errors = ooms(snapshot)
    return Rank(
        name=name,
        device=snapshot.device,
        peak=numbers.peak if len(snapshot.trace) else numbers.current,
        end=numbers.current,
        reserved=numbers.peak_reserved,
        ooms=numbers.ooms,
        oom_wanted=errors[-1].wanted if errors else 0,
        oom_label=errors[-1].label if errors else "",
        entries=len(snapshot.trace),
        lost=snapshot.lost,
        truncated="truncated" in snapshot.notes,
        sites=tuple((use.label, use.live_bytes) for use in sites(snapshot, timeline=timeline)[:_SITES]),
    )


def _lines(snapshot: Snapshot) -> dict[str, list[tuple[str, int]]]:
    """Return labels and live bytes of the lines at the peak, for each site with several."""
    timeline = reconstruct(snapshot)
    held, live = timeline.allocations, timeline.allocations.live_at(timeline.peak)
    whole = find_sites(snapshot)
    parts = find_sites(with_split(snapshot, frozenset(whole.labels)))
    both = np.stack([whole.of_stack[held.stack[live]], parts.of_stack[held.stack[live]]], 1)
    pairs, which = np.unique(both, axis=0, return_inverse=True)
    nbytes = np.zeros(len(pairs), np.int64)
    np.add.at(nbytes, which.reshape(-1), held.nbytes[live])
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (site, part), size in zip(pairs.tolist(), nbytes.tolist(), strict=True):
        found[whole.labels[site]].append((parts.labels[part], size))
    return {label: lines for label, lines in found.items() if len(lines) > 1}


def read_rank(path: str | os.PathLike[str], choice: SiteChoice = DEFAULT_CHOICE) -> tuple[ReadRank, ...] | Unreadable:
    """Read one file and return the figures of its devices that were used, or the reason why it is unreadable.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    choice : SiteChoice, optional
        How sites are chosen.
    """
    name = Path(path).name
    try:
        snapshots = [replace(each, site_choice=choice) for each in load(path)]
        used = [each for each in snapshots if len(each.segments) or len(each.trace)] or list(snapshots[:1])
        names = [name if len(used) == 1 else f"{name} {each.device}" for each in used]
        return tuple(ReadRank(rank_of(each, n), _lines(each)) for each, n in zip(used, names, strict=True))
    except MemoryError:
        return Unreadable(name, "not enough memory to read it")
    except (ForebayError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{os.fspath(path)}: ")
        return Unreadable(name, " ".join(reason.split()) or type(error).__name__)


def compare_ranks(
    paths: Iterable[str | os.PathLike[str]],
    choice: SiteChoice = DEFAULT_CHOICE,
    *,
    executor: Executor | None = None,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Ranks:
    """Read the snapshots of all ranks and compare their peaks. Files that could not be read are part of the result.

    Parameters
    ----------
    paths : iterable of str or os.PathLike
        The files, one for each rank.
    choice : SiteChoice, optional
        How sites are chosen.
    executor : concurrent.futures.Executor, optional
        Reads the files; by default they are read one after the other.
    workers : int, default 1
        Number of the executor's workers. At most two files for each are read or wait, so memory is bounded; only the
        figures of a rank are kept.
    progress : callable, optional
        Called as `progress(files_done)`.
    """
    read: list[ReadRank] = []
    unreadable: list[Unreadable] = []
    for done, result in enumerate(_read(paths, choice, executor, workers), 1):
        if isinstance(result, Unreadable):
            unreadable.append(result)
        else:
            read += result
        if progress is not None:
            progress(done)
    heavy = frozenset(each.heavy() for each in read)
    ranks = [each.split(heavy) for each in read]
    ranks.sort(key=lambda rank: _natural(rank.name))
    unreadable.sort(key=lambda file: _natural(file.name))
    middle = int(median(rank.peak for rank in ranks)) if ranks else 0
    return Ranks(tuple(ranks), tuple(unreadable), middle, tuple(_outliers(ranks, middle)),
                 tuple(_skewed(ranks, middle)))  # fmt: skip


def _read(
    paths: Iterable[str | os.PathLike[str]], choice: SiteChoice, executor: Executor | None, workers: int
) -> Iterator[tuple[ReadRank, ...] | Unreadable]:
    if executor is None:
        yield from (read_rank(path, choice) for path in paths)
        return
    remaining = iter(paths)
    waiting: list[Future[tuple[ReadRank, ...] | Unreadable]] = [
        executor.submit(read_rank, path, choice) for path in islice(remaining, _AT_ONCE * max(workers, 1))
    ]
    try:
        while waiting:
            result = waiting.pop(0).result()
            waiting += [executor.submit(read_rank, path, choice) for path in islice(remaining, 1)]
            yield result
    finally:
        for future in waiting:
            future.cancel()


def _outliers(ranks: Sequence[Rank], middle: int) -> list[Outlier]:
    """Return the ranks whose peak is far from the median, in relation to it and to the differences of the others."""
    if len(ranks) < 2:
        return []
    usual = median(abs(rank.peak - middle) for rank in ranks)
    chosen = [
        rank for rank in ranks
        if abs(rank.peak - middle) > _OUTLIER * middle and abs(rank.peak - middle) > _MAD * usual
    ]  # fmt: skip
    if len(ranks) == 2 and abs(ranks[0].peak - ranks[1].peak) > _OUTLIER * middle:
        chosen = [max(ranks, key=lambda rank: rank.peak)]
    by_site: dict[str, list[int]] = defaultdict(list)
    for rank in ranks if chosen else ():
        for label, nbytes in dict(rank.sites).items():
            by_site[label].append(nbytes)
    medians = {label: int(median(found + [0] * (len(ranks) - len(found)))) for label, found in by_site.items()}
    found = [_outlier(rank, middle, medians) for rank in chosen]
    return sorted(found, key=lambda outlier: (-abs(outlier.difference), _natural(outlier.rank.name)))


def _skewed(ranks: Sequence[Rank], middle: int) -> list[SiteSkew]:
    """Return the sites whose memory differs between the ranks."""
    held = [dict(rank.sites) for rank in ranks]
    found = []
    for label in dict.fromkeys(label for each in held for label in each):
        values = [each.get(label, 0) for each in held]
        highest = max(values)
        if highest - min(values) >= max(_SKEWED * middle, 1):
            rank = ranks[values.index(highest)].name
            found.append(SiteSkew(label, min(values), int(median(values)), highest, rank))
    return sorted(found, key=lambda site: (-site.spread, site.label))


def _outlier(rank: Rank, middle: int, medians: dict[str, int]) -> Outlier:
    difference, held = rank.peak - middle, dict(rank.sites)
    sign = 1 if difference > 0 else -1
    label = max(medians, key=lambda each: (sign * (held.get(each, 0) - medians[each]), each), default="")
    nbytes, usual = held.get(label, 0), medians.get(label, 0)
    if sign * (nbytes - usual) <= 0:
        return Outlier(rank, difference, "", 0, 0)
    return Outlier(rank, difference, label, nbytes, usual)


def _natural(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts rank2 before rank10."""
    return [(text, int(digits or 0)) for text, digits in _NUMBERS.findall(name)]
