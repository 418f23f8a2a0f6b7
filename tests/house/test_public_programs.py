"""Public programs: a repository of the cache is checked out, given data, and run in both modes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

PROGRAM = """
import pathlib, torch
words = len(pathlib.Path("data/train.txt").read_text().split())
given = torch.randn(words, device="cuda")
print(given.sum().item(), len(pathlib.Path("absent.txt").read_text()))
"""


@pytest.fixture
def public(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    from packages import public_programs

    yield public_programs
    for name in [name for name in sys.modules if name.partition(".")[0] == "packages"]:
        del sys.modules[name]


@pytest.fixture
def cache(tmp_path):
    """Return a cache with one repository, and its commit."""
    folder = tmp_path / "owner+name/repo"
    (folder / "examples").mkdir(parents=True)
    (folder / "examples/train.py").write_text(PROGRAM.replace("absent.txt", "here.txt"))
    (folder / "examples/here.txt").write_text("here")
    git = ["git", "-C", str(folder), "-c", "user.name=name", "-c", "user.email=name@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add programs"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, timeout=60, capture_output=True, text=True)
    return tmp_path, commit.stdout.strip()


def program(public, commit, script="train.py", **options):
    given = {"data": {"data": "wikitext"}, **options}
    return public.PublicProgram("a program", "owner/name", commit, ["examples"], "examples", [script], **given)


def test_program_runs_unedited_in_both_modes(public, cache):
    folder, commit = cache
    found = public.compare_public(program(public, commit), folder)
    assert found.text == "peak 24,576 bytes, 1 assumed lines"
    assert (found.source, found.commit, found.peaks) == ("owner/name", commit, (24576, 24576))
    assert found.seconds > 0


@pytest.mark.parametrize(
    ("with_values", "without", "problem"),
    [
        (("fits", 10, 0, ""), ("tight", 10, 0, ""), ""),
        (("fits", 10, 0, ""), ("does not fit", 20, 1, ""), ""),  # an assumed value made it larger
        (("fits", 10, 0, ""), ("fits", 20, 0, ""), "the peak is 20 bytes, and with values 10"),
        (("fits", 20, 0, ""), ("fits", 10, 1, ""), "the peak is 10 bytes, and with values 20"),
        (("fits", 10, 0, ""), ("did not finish", 5, 0, "at line 3"), "without values: did not finish: at line 3"),
    ],
)
def test_difference_of_the_modes_is_found(public, cache, monkeypatch, with_values, without, problem):
    from packages.results import outcome

    folder, commit = cache
    answers = {"--compute": public.Answer(*with_values), "--shapes-only": public.Answer(*without)}
    monkeypatch.setattr(public, "_fit", lambda program, start, mode: answers[mode])
    found = public.compare_public(program(public, commit), folder)
    assert problem in found.text
    assert outcome(found, "")[0] == ("FAILED" if problem else "ok")
    assert outcome(found, "a reason")[0] == ("ok" if problem else "FAILED")
    text = outcome(found, "a reason")[1]
    assert ("misses: a reason" if problem else "expected to miss") in text


def test_what_cannot_run_is_reported(public, cache):
    folder, commit = cache
    assert public.why_not(program(public, commit), folder) == ""
    elsewhere = program(public, commit)._replace(repository="owner/other")
    assert public.why_not(elsewhere, folder) == "owner/other is not in the cache"
    with pytest.raises(FileNotFoundError, match="owner/other is not in the cache"):
        public.compare_public(elsewhere, folder)
    lacking = program(public, commit, needs=["sys", "no_such_package"])
    assert public.why_not(lacking, folder) == "it needs no_such_package"


def test_error_names_no_folder_of_this_machine(public):
    row = {
        "verdict": "did not finish",
        "peak_allocated": 1,
        "assumptions": [],
        "text": "did not finish",
        "line": "a.py:3",
    }
    answer = public._answer_of({**row, "message": "at /opt/env/site-packages/one/b.py:7"})
    assert public._without_folders(answer.error) == "a.py:3 at one/b.py:7"


def test_program_that_takes_too_long_did_not_finish(public, cache, monkeypatch):
    folder, commit = cache
    monkeypatch.setattr(public, "_fit", lambda program, start, mode: public.Answer("fits", 10, 0, ""))
    monkeypatch.setattr(public, "PROCESSOR_LIMIT", -1)
    found = public.compare_public(program(public, commit), folder)
    assert found.with_values == found.without_values == "did not finish: it took 0 s of processor time"


def test_interrupted_run_goes_on_where_it_ended(public, cache, tmp_path, monkeypatch, capsys):
    from packages import __main__ as tool
    from packages.results import read_results

    folder, commit = cache
    programs = [program(public, commit)._replace(name=name) for name in ("one", "two", "other")]
    tries = []

    def compare(each, _cache):
        tries.append(each.name)
        if tries == ["one", "two"]:
            raise KeyboardInterrupt
        return public.Result(each.name, "owner/name", commit, "", "", (len(tries), 10), 1, 2.0)

    monkeypatch.setattr(tool, "public_programs", lambda: programs)
    monkeypatch.setattr(tool, "compare_public", compare)
    command = ["--public", str(folder), "--results", str(tmp_path / "results.jsonl")]
    with pytest.raises(KeyboardInterrupt):
        tool.main(command)
    assert tool.main(command) == 0
    assert tries == ["one", "two", "two", "other"]
    assert tool.main([*command, "one"]) == 0
    found = read_results(tmp_path / "results.jsonl")
    assert [(name, each.peaks) for name, each in found.items()] == [
        ("one", (5, 10)),
        ("two", (3, 10)),
        ("other", (4, 10)),
    ]
    assert "ok      one: peak 5 bytes, 10 without values, 1 assumed lines, 2 s" in capsys.readouterr().out


def test_each_program_has_data_and_a_name_of_its_own(public):
    from packages.synthetic_data import maker

    programs = public.public_programs()
    assert len({each.name for each in programs}) == len(programs)
    for each in programs:
        assert len(each.commit) == 40
        assert all(callable(maker(kind)) for kind in each.data.values())
