"""Results of `dev.py gpu`: the page, and the entry of verified hardware, which only a complete run on a GPU gets."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tarfile
import tomllib
from dataclasses import replace

import pytest

DAY = dt.date(2026, 11, 23)


@pytest.fixture
def gpu(root, monkeypatch):
    """The modules of tools/gpu."""
    monkeypatch.syspath_prepend(root / "tools")
    import gpu.__main__ as command
    from gpu import card, part, parts, records

    class Modules:
        pass

    made = Modules()
    made.command, made.card, made.part, made.parts, made.records = command, card, part, parts, records
    yield made
    for name in [name for name in sys.modules if name in ("gpu", "steps") or name.startswith("gpu.")]:
        del sys.modules[name]


@pytest.fixture
def card(gpu):
    return gpu.card.Card('NVIDIA "H100"', "580.65 (CUDA 13.0)", 1, software=False)


def results(gpu, **statuses):
    """Return results in which every part is ok but for the named ones."""
    found = []
    for each in gpu.parts.PARTS:
        outcome = gpu.part.Outcome(statuses.get(each.name, "ok"), "a detail", [f"about {each.name}"])
        found.append(gpu.parts.Result(each, outcome, 3.0))
    return found


@pytest.mark.parametrize(
    ("statuses", "passed"),
    [
        ({}, True),
        ({"random_numbers": "not run", "interoperability": "not run"}, True),
        ({"random_numbers": "failed"}, True),
        ({"conformance": "not run"}, False),
        ({"truth": "incomplete"}, True),
        ({"conformance": "incomplete"}, False),
        ({"benchmarks": "failed"}, False),
    ],
)
def test_run_passes_if_no_part_failed_and_required_ones_ran(gpu, statuses, passed):
    assert gpu.records.passed(results(gpu, **statuses)) is passed


def test_entry_has_card_driver_date_and_how(gpu, card):
    (run,) = tomllib.loads(gpu.records.entry(results(gpu, interoperability="not run"), card, DAY))["run"]
    assert (run["kind"], run["on"], run["when"]) == ("cuda", 'NVIDIA "H100", driver 580.65 (CUDA 13.0)', DAY)
    assert run["how"].startswith("python3 dev.py gpu: truth: a detail; ")
    assert "interoperability" not in run["how"]


def test_entry_replaces_that_of_the_same_hardware_only(gpu, card, root, tmp_path):
    file = tmp_path / "verified.toml"
    file.write_text((root / "src/forebay/backends/verified.toml").read_text())
    before = tomllib.loads(file.read_text())["run"]
    for each in (card, replace(card, name="NVIDIA A100"), card):
        file.write_text(gpu.records.with_entry(file, gpu.records.entry(results(gpu), each, DAY)))
    after = tomllib.loads(file.read_text())["run"]
    assert after[: len(before)] == before
    assert [run["on"].partition(",")[0] for run in after[len(before) :]] == ["NVIDIA A100", 'NVIDIA "H100"']
    assert file.read_text().startswith("# Hardware on which")


@pytest.fixture
def kept(gpu, monkeypatch, tmp_path):
    """Return a function that finishes a run and keeps it, and returns which files of the repository were written."""
    from gpu import run, run_folder, verified

    monkeypatch.setattr(verified, "PAGE_OF_DOCS", tmp_path / "page.md")
    monkeypatch.setattr(verified, "ENTRIES", tmp_path / "verified.toml")

    def finish(found, card, *, complete=True):
        folder = run_folder.RunFolder(tmp_path / "out")
        folder.create()
        made = run.Run(folder, {}, card, deadline=0.0, quick=False, command="python3 dev.py gpu", complete=complete)
        for each in found:
            made._results.end(each)
        made.finish()
        shutil.move(folder.path / "results.tar.xz", tmp_path / "archive.tar.xz")  # has all that is kept
        verified.keep_verified(tmp_path / "archive.tar.xz")
        return sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".toml"))

    return finish


def test_complete_run_on_a_gpu_is_kept(gpu, card, kept, tmp_path):
    assert kept(results(gpu), card) == ["page.md", "verified.toml"]
    assert "| Conformance suite | ok | a detail | 3 s |" in (tmp_path / "page.md").read_text()
    (run,) = tomllib.loads((tmp_path / "verified.toml").read_text())["run"]
    assert run["on"] == 'NVIDIA "H100", driver 580.65 (CUDA 13.0)'


def test_other_runs_verify_nothing(gpu, card, kept):
    assert kept(results(gpu, graphs="failed"), card) == []
    assert kept(results(gpu, conformance="incomplete"), card) == []
    assert kept(results(gpu), card, complete=False) == []
    assert kept(results(gpu), replace(card, software=True)) == []


@pytest.mark.parametrize("name", ["absent", "a file", "an archive of others"])
def test_what_is_no_run_is_refused_in_one_line(gpu, tmp_path, name):
    from gpu import results as results_of_runs
    from gpu import verified

    path = tmp_path / "given"
    if name == "a file":
        path.write_bytes(b"\xfd7zXZ" + bytes(100))
    elif name == "an archive of others":
        with tarfile.open(path, "w:xz") as archive:
            archive.add(__file__, "results.json/../../escape")
    for read in (verified.keep_verified, results_of_runs.read_earlier):
        with pytest.raises(ValueError, match=r"^.*given has no results of a run: \w+: .*$"):
            read(path)
