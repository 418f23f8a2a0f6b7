"""Division of the sites that hold more than half of the memory, equal in all analyses of a snapshot."""

from __future__ import annotations

from dataclasses import replace

from support.snapshot_scenes import MIB, Scene

from forebay.records.site_choice import site_choice
from forebay.records.sites import find_sites, with_split
from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.analysis.growth import growth
from forebay.snapshot.analysis.largest_sites import largest_sites, split_largest
from forebay.snapshot.analysis.ranks import compare_ranks
from forebay.snapshot.analysis.summary import sites
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import native
from forebay.snapshot.report.explanation import explanation

PACKAGES = "/opt/conda/lib/python3.11/site-packages"
TRAINER = f"{PACKAGES}/transformers/trainer.py:2240 Trainer.train"
SITE = "train.py:9 <module>"


def training(*nbytes: int, other: int = 0) -> Scene:
    """Return a scene in which one line of the program allocates at several lines of a library."""
    scene = Scene()
    for line, size in enumerate(nbytes, 1):
        scene.allocate(size, scene.stack(SITE, TRAINER, f"{PACKAGES}/transformers/gpt2.py:{line} f"))
    if other:
        scene.allocate(other, scene.stack("train.py:3 load"))
    return scene


def line(number: int) -> str:
    return f"{SITE} → transformers/gpt2.py:{number} f"


def uses(scene: Scene) -> list[tuple[str, str, int]]:
    snapshot = scene.snapshot()
    timeline = reconstruct(snapshot)
    found = sites(split_largest(snapshot, timeline), timeline=timeline)
    return [(use.label, use.library, use.live_bytes >> 20) for use in found]


def test_site_with_more_than_half_of_the_memory_is_split_by_library_line():
    assert uses(training(3 * MIB, 2 * MIB, other=MIB)) == [
        (line(1), "", 3), (line(2), "", 2), ("train.py:3 load", "", 1),
    ]  # fmt: skip


def test_site_with_half_of_the_memory_is_not_split():
    assert uses(training(2 * MIB, MIB, other=3 * MIB)) == [
        ("train.py:3 load", "", 3), (SITE, "transformers/trainer.py:2240", 3)
    ]  # fmt: skip


def test_site_with_one_library_line_is_not_split():
    assert uses(training(MIB)) == [(SITE, "transformers/trainer.py:2240", 1)]


def test_split_is_kept_by_each_further_one_and_repeated_without_effect():
    snapshot = training(3 * MIB, 2 * MIB, other=MIB).snapshot()
    once = split_largest(snapshot, reconstruct(snapshot))
    assert with_split(once, frozenset({SITE})) is once
    assert split_largest(once, reconstruct(once)) is once
    assert find_sites(once).labels == find_sites(with_split(snapshot, frozenset({SITE, "no such"}))).labels


def test_categories_are_not_split():
    snapshot = replace(training(3 * MIB, 2 * MIB).snapshot(), site_choice=site_choice(categories=["all=."]))
    assert largest_sites(snapshot, reconstruct(snapshot)) == frozenset()


def test_all_tables_of_an_explanation_have_the_same_sites():
    scene = Scene()
    for _ in range(20):
        for row in (1, 2):
            scene.allocate(MIB * row, scene.stack(SITE, TRAINER, f"{PACKAGES}/transformers/gpt2.py:{row} f"))
        temporary = scene.allocate(9 * MIB, scene.stack("train.py:3 load"))
        scene.free(temporary)
    snapshot = scene.snapshot()
    found = explanation(snapshot, replay=False)
    assert [use.label for use in found.sites][:2] == [line(2), line(1)]
    assert [site.label for site in found.growth.sites] == [line(2), line(1)]
    assert [site.label for site in growth(snapshot).sites] == [SITE]  # of a snapshot that was not split


def test_comparison_splits_what_is_large_in_one_of_both():
    before, after = training(MIB, MIB, other=9 * MIB).snapshot(), training(9 * MIB, MIB, other=MIB).snapshot()
    for first, second in ((before, after), (after, before)):
        found = {site.label: [held.nbytes >> 20 for held in site.peak] for site in compare(first, second).sites}
        sizes = {line(1): [1, 9], line(2): [1, 1], "train.py:3 load": [9, 1]}
        assert found == (sizes if first is before else {label: size[::-1] for label, size in sizes.items()})


def test_ranks_split_what_is_large_in_one_of_them(tmp_path):
    for number, scene in enumerate((training(MIB, MIB, other=9 * MIB), training(9 * MIB, MIB, other=MIB))):
        native.write(scene.snapshot(), tmp_path / f"rank{number}.forebay")
    found = compare_ranks(tmp_path.iterdir())
    assert [dict(rank.sites) for rank in found.ranks] == [
        {line(1): MIB, line(2): MIB, "train.py:3 load": 9 * MIB},
        {line(1): 9 * MIB, line(2): MIB, "train.py:3 load": MIB},
    ]
    assert {(site.label, site.lowest, site.highest) for site in found.sites} == {
        (line(1), MIB, 9 * MIB), ("train.py:3 load", MIB, 9 * MIB)
    }  # fmt: skip
