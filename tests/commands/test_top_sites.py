"""Sites in `forebay top`: those of all other commands, chosen by the same options."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.snapshot_scenes import MIB, Scene

from forebay.commands.top_sites import as_json, with_sites
from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings
from forebay.observe.monitor.live_stacks import LiveStacks, live_stacks
from forebay.observe.monitor.machine import MachineFigures
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice, site_choice

PACKAGES = "/opt/conda/lib/python3.11/site-packages"


def machine(stacks: LiveStacks) -> MachineFigures:
    device = DeviceFigures("cpu", "Xeon", False, None, 1, 1, 1, 1, 0, 0, 0, 1, 0, Readings(), stacks=stacks)
    return MachineFigures((ProcessFigures(7, "train.py", 1.0, 1.0, 1, (device,)),), (), {})


def found(choice: SiteChoice = DEFAULT_CHOICE, most: int = 100) -> list[tuple[str, str, int, int]]:
    scene = Scene()
    for _ in range(2):
        scene.allocate(MIB, scene.stack("cli.py:1 main", "train.py:9 step", f"{PACKAGES}/pandas/frame.py:5 take"))
    for line in (1, 2):
        scene.allocate(3 * MIB, scene.stack("cli.py:1 main", "train.py:8 fit", f"{PACKAGES}/sklearn/a.py:{line} f"))
    (process,) = with_sites(machine(live_stacks(scene.snapshot(), most)), choice).processes
    return [(site.label, site.library, site.nbytes >> 20, site.count) for site in process.devices[0].sites]


@pytest.mark.parametrize(
    ("choice", "sites"),
    [
        (
            DEFAULT_CHOICE,
            [
                ("train.py:8 fit → sklearn/a.py:1 f", "", 3, 1), ("train.py:8 fit → sklearn/a.py:2 f", "", 3, 1),
                ("train.py:9 step", "pandas/frame.py:5", 2, 2),
            ],
        ),
        (
            site_choice(library=True),
            [("sklearn/a.py:1 f", "", 3, 1), ("sklearn/a.py:2 f", "", 3, 1), ("pandas/frame.py:5 take", "", 2, 2)],
        ),
        (site_choice(categories=["data=pandas"]), [("(other)", "", 6, 2), ("data", "", 2, 2)]),
        (site_choice(pattern="cli"), [
                ("cli.py:1 main → sklearn/a.py:1 f", "", 3, 1), ("cli.py:1 main → sklearn/a.py:2 f", "", 3, 1),
                ("cli.py:1 main → pandas/frame.py:5 take", "", 2, 2),
            ]),
    ],
)  # fmt: skip
def test_sites_are_chosen(choice, sites):
    assert found(choice) == sites


def test_depth_shows_callers():
    assert found(site_choice(depth=2))[-1][0] == "train.py:9 step, cli.py:1 main"


def test_further_stacks_are_one_row():
    assert [site[0] for site in found(most=1)] == ["train.py:8 fit", "(other stacks)"]


def test_hostile_stacks_are_a_failure_of_their_process():
    stacks = LiveStacks(("a",), (0, 9, 1), (0, 0), (1, 1, 1))
    assert with_sites(machine(stacks)).failures[7].startswith("its figures cannot be read: the stacks refer to rows")


def test_json_has_sites_and_no_stacks():
    (device,) = as_json(with_sites(machine(replace(LiveStacks(), other_blocks=1))))["processes"][0]["devices"]
    assert device["sites"] == ()
    assert "stacks" not in device
