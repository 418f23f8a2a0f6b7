"""Comparison of ranks: figures, outliers and their sites, files that cannot be read, and bounded memory."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_programs import dumped, program
from support.snapshot_scenes import MIB, Scene, training

from forebay.snapshot.analysis.ranks import Rank, Unreadable, compare_ranks, rank_of, read_rank
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import native


def scene(layer: int, extra: int = 0):
    made = Scene()
    for line in range(4):
        made.allocate(layer, made.stack(f"model.py:{line} layer"))
    if extra:
        made.allocate(extra, made.stack("log.py:5 gather"))
    return made.snapshot()


@pytest.fixture
def folder(tmp_path):
    """Twelve ranks of 40 MiB or a little more; rank 7 holds 30 MiB that no other has."""
    for number in range(12):
        snapshot = scene(10 * MIB + number % 3 * 1000, 30 * MIB if number == 7 else 0)
        native.write(snapshot, tmp_path / f"rank{number}.forebay")
    return tmp_path


def test_outlier_and_its_site_are_found(folder):
    found = compare_ranks(folder.iterdir())
    assert [rank.name for rank in found.ranks] == [f"rank{number}.forebay" for number in range(12)]
    (outlier,) = found.outliers
    assert (outlier.rank.name, outlier.label) == ("rank7.forebay", "log.py:5 gather")
    assert (outlier.site_bytes, outlier.site_median) == (30 * MIB, 0)
    assert outlier.difference == outlier.rank.peak - found.median_peak
    assert found.skew == pytest.approx(outlier.rank.peak * 12 / sum(rank.peak for rank in found.ranks))


def test_sites_that_differ_are_found(folder):
    (site,) = compare_ranks(folder.iterdir()).sites  # layers differ by 2,000 bytes, less than 1 % of the median peak
    assert (site.label, site.lowest, site.median, site.highest) == ("log.py:5 gather", 0, 0, 30 * MIB)
    assert (site.rank, site.spread) == ("rank7.forebay", 30 * MIB)


def test_rank_that_lacks_memory_is_an_outlier_too(tmp_path):
    for number in range(8):
        native.write(scene(10 * MIB, 0 if number == 3 else 30 * MIB), tmp_path / f"{number}.forebay")
    (outlier,) = compare_ranks(tmp_path.iterdir()).outliers
    assert (outlier.rank.name, outlier.label, outlier.difference) == ("3.forebay", "log.py:5 gather", -30 * MIB)


def test_equal_ranks_have_no_outliers(tmp_path):
    for number in range(3):
        native.write(scene(MIB), tmp_path / f"{number}.forebay")
    found = compare_ranks(sorted(tmp_path.iterdir()))
    assert (found.outliers, found.skew, found.median_peak) == ((), 1.0, 4 * MIB)


def test_higher_of_two_ranks_is_the_outlier(tmp_path):
    for number in (1, 2):
        native.write(scene(number * MIB), tmp_path / f"{number}.forebay")
    (outlier,) = compare_ranks(sorted(tmp_path.iterdir())).outliers
    assert outlier.rank.name == "2.forebay"


def test_files_that_cannot_be_read_are_listed(folder):
    (folder / "rank20.pickle").write_bytes(b"\x80\x04broken")
    (folder / "rank21.forebay").write_bytes(b"")
    (folder / "rank22.forebay").mkdir()
    (folder / "rank3.forebay").write_bytes((folder / "rank3.forebay").read_bytes()[:200])
    found = compare_ranks(folder.iterdir())
    assert len(found.ranks) == 11
    assert [file.name for file in found.unreadable] == [
        "rank3.forebay", "rank20.pickle", "rank21.forebay", "rank22.forebay"
    ]  # fmt: skip
    assert all(file.reason and "\n" not in file.reason for file in found.unreadable)
    assert read_rank(folder / "no such") == Unreadable("no such", "No such file or directory")


def test_memory_error_is_listed(folder, monkeypatch):
    def load(path):
        raise MemoryError

    monkeypatch.setattr("forebay.snapshot.analysis.ranks.load", load)
    assert read_rank(folder / "rank1.forebay") == Unreadable("rank1.forebay", "not enough memory to read it")
    found = compare_ranks(folder.iterdir())
    assert (found.ranks, found.skew, found.median_peak, len(found.unreadable)) == ((), 1.0, 0, 12)


def test_executor_gives_the_same_ranks_and_few_files_wait(folder):
    waiting = []

    class Counting(ThreadPoolExecutor):
        def submit(self, function, *arguments):
            waiting.append(1)
            future: Future = super().submit(function, *arguments)
            future.add_done_callback(lambda _: waiting.pop())
            most.append(len(waiting))
            return future

    most: list[int] = []
    done: list[int] = []
    with Counting(2) as executor:
        found = compare_ranks(sorted(folder.iterdir()), executor=executor, workers=2, progress=done.append)
    assert found == compare_ranks(folder.iterdir())
    assert max(most) <= 4
    assert done == list(range(1, 13))


def test_devices_of_one_file_are_ranks_of_their_own(tmp_path):
    both, other = program(1, steps=100), program(2, steps=100, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] = [both["device_traces"][0], other["device_traces"][1], []]
    (tmp_path / "both.pickle").write_bytes(dumped(both))
    found = compare_ranks(tmp_path.iterdir())
    assert [rank.name for rank in found.ranks] == ["both.pickle cuda:0", "both.pickle cuda:1"]


def test_figures_of_a_rank_are_those_of_its_timeline():
    snapshot = training()
    rank, timeline = rank_of(snapshot, "r"), reconstruct(snapshot)
    assert (rank.peak, rank.end) == (timeline.allocated.max(), timeline.allocated[-1])
    assert sum(nbytes for _, nbytes in rank.sites) == rank.peak
    assert (rank.ooms, rank.oom_wanted) == (1, 200 * MIB)
    assert rank.oom_label.endswith("head.py:19 project")


@given(st.lists(st.integers(0, 1 << 40), max_size=20))
def test_skew_is_at_least_one_and_outliers_are_ranks(peaks):
    from forebay.snapshot.analysis.ranks import Ranks, _outliers

    ranks = tuple(Rank(str(n), "cuda:0", peak, 0, 0, 0, 0, "", 0, 0, False, ()) for n, peak in enumerate(peaks))
    found = Ranks(ranks, (), 0, ())
    assert 1 - 1e-9 <= found.skew <= max(1, len(peaks)) + 1e-9
    middle = sorted(peaks)[len(peaks) // 2] if peaks else 0
    assert len(_outliers(ranks, middle)) <= len(ranks)
