"""Results of `dev.py gpu`: the page, and the entry of verified hardware, which only a complete run on a GPU gets."""

from __future__ import annotations

import datetime as dt
import sys
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
        ({"random_numbers": "failed"}, False),
        ({"conformance": "not run"}, False),
        ({"benchmarks": "failed"}, False),
    ],
)
def test_run_passes_if_no_part_failed_and_required_ones_ran(gpu, statuses, passed):
    assert gpu.records.passed(results(gpu, **statuses)) is passed


def test_entry_has_card_driver_date_and_how(gpu, card):
    (run,) = tomllib.loads(gpu.records.entry(results(gpu, interoperability="not run"), card, DAY))["run"]
    assert (run["kind"], run["on"], run["when"]) == ("cuda", 'NVIDIA "H100", driver 580.65 (CUDA 13.0)', DAY)
    assert run["how"].startswith("python3 dev.py gpu: conformance: a detail; ")
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
def written(gpu, monkeypatch, tmp_path):
    """Return a function that finishes a run, and returns which files of the repository it wrote."""
    monkeypatch.setattr(gpu.command, "ROOT", tmp_path)
    monkeypatch.setattr(gpu.command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(gpu.command, "VERIFIED", tmp_path / "verified.toml")

    def finish(found, card, *, complete=True, output=None):
        gpu.command._write(found, card, output, complete=complete, command="python3 dev.py gpu")
        return sorted(path.name for path in tmp_path.iterdir() if path.is_file())

    return finish


def test_complete_run_on_a_gpu_writes_both_files(gpu, card, written, tmp_path):
    assert written(results(gpu), card) == ["page.md", "verified.toml"]
    assert "| Conformance suite | ok | a detail | 3 s |" in (tmp_path / "page.md").read_text()


def test_other_runs_write_nothing_into_the_repository(gpu, card, written):
    assert written(results(gpu, graphs="failed"), card) == []
    assert written(results(gpu), card, complete=False) == []
    assert written(results(gpu), replace(card, software=True)) == []


def test_output_of_a_run_that_verifies_nothing_has_no_entry(gpu, card, written, tmp_path):
    folder = tmp_path / "results"
    cases = {
        "failures": (results(gpu, graphs="failed"), card),
        "rehearsal": (results(gpu), replace(card, software=True)),
    }
    for found, of in cases.values():
        assert written(found, of, output=folder) == []
        assert tomllib.loads((folder / "verified.toml").read_text()) == {}
    assert written(results(gpu), card, output=folder) == []
    assert len(tomllib.loads((folder / "verified.toml").read_text())["run"]) == 1
