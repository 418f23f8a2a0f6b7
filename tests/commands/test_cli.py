"""The command line: what it says to people who mistype, and to programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.cli import main
from forebay.commands import checks, doctor, info
from forebay.commands.checks import CHECKS, Check


def complaint(capsys, *arguments: str) -> str:
    """What one line is said of arguments that make no sense."""
    try:
        status = main(arguments)
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.startswith("forebay: error: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("mend", "invalid choice: 'mend' (choose from"),
        ("--verbose", "unrecognized arguments: --verbose"),
        ("run", "no script to run: forebay run train.py"),
        ("run -m", "no module to run: forebay run -m MODULE"),
        ("run --", "no script to run"),
        ("run nosuch.py", "cannot read the script 'nosuch.py': No such file or directory"),
        ("run .", "'.' is a directory, not a script; a package is run with -m"),
        ("run /dev/null/x", "cannot read the script '/dev/null/x': Not a directory"),
        ("run a\0b", "cannot read the script 'a\\x00b'"),
        ("run --memory", "argument --memory: expected one argument"),
        ("run --mem 1G x.py", "--mem"),
        ("run --entries 0 x.py", "argument --entries: '0' is not a number above 0"),
        ("run --entries many x.py", "argument --entries: 'many' is not a number above 0"),
        ("run --emulate", "argument --emulate: expected one argument"),
        ("run --emulate cuda:0 x.py", "argument --emulate: 'cuda:0' does not say what to emulate: expected KIND:COUNT"),
        ("run --emulate cuda,cuda x.py", "argument --emulate: 'cuda,cuda' names a kind twice"),
        (
            "run --emulate cuda@none tests/commands/test_cli.py",
            "--emulate: there is no profile 'none'; there are a100, ",
        ),
        ("run --emulate mtia@h200 tests/commands/test_cli.py", "--emulate: profile 'h200' is of kind cuda, not mtia"),
        ("run --emulate tpu tests/commands/test_cli.py", "--emulate: 'tpu' is no kind of device"),
        (
            "run --guard tests/commands/test_cli.py",
            "--guard is for emulated devices: say which, as in --emulate cuda:2",
        ),
        ("info now", "unrecognized arguments: now"),
        ("doctor --check luck", "there is no check 'luck'; there are 'native core', "),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, words):
    assert words in complaint(capsys, *arguments.split(" "))
    assert "FOREBAY_EMULATE" not in os.environ


@pytest.mark.parametrize("size", ["12 bananas", "", "-1", "0", "1e3", "16 MiBs", "9999999T", "٣"])
def test_bad_sizes_are_told_with_the_accepted_spellings(capsys, size):
    said = complaint(capsys, "run", f"--memory={size}", "x.py")
    assert f"argument --memory: {size!r} is not a size; write a number above 0 and a unit, as in 4096, 512k" in said


def test_a_script_that_may_not_be_read(capsys, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "open_code", refuse)
    assert "cannot read the script 'x.py': Permission denied" in complaint(capsys, "run", "x.py")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["info", "--help"], ["doctor", "-h"]])
def test_help_goes_to_standard_output(capsys, arguments):
    try:
        status = main(arguments)
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr()
    assert (status or 0, said.err) == (0, "")
    assert said.out.startswith("usage: forebay")


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"forebay {forebay.__version__}\n"


def test_info_for_programs(capsys):
    assert main(["info", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    host = next(device for device in said["devices"] if device["kind"] == "host")
    assert host["host_visible"]
    assert 0 < host["free_bytes"] <= host["total_bytes"]
    assert said["versions"]["forebay"] == forebay.__version__
    present = {device["kind"] for device in said["devices"]}
    assert {"cuda", "mps", "mtia"} <= present | said["missing"].keys()
    assert all(said["missing"].values())


def test_info_for_people(capsys, monkeypatch):
    broken = {"kind": "mtia", "index": 1, "error": "[red]it said no[/red]"}
    monkeypatch.setattr(info, "devices", lambda: [device(), broken])
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    for words in ("host:0", "Some CPU", "2.00 GiB", "1.00 GiB", "mtia:1", "[red]it said no[/red]", "numpy"):
        assert words in said


def device(**what) -> dict:
    whole = {"kind": "host", "index": 0, "name": "Some CPU", "total_bytes": 2 << 30, "free_bytes": 1 << 30}
    seen = {"host_visible": True, "capability": None, "profile": None, "guarded": False, "error": None}
    return whole | seen | what


@pytest.mark.parametrize("guard", [False, True], ids=["plain", "guarded"])
def test_info_says_what_is_emulated(capsys, monkeypatch, guard):
    monkeypatch.setenv("COLUMNS", "160")
    with forebay.emulate("cuda", count=2, profile="a100", memory="3GiB", guard=guard):
        assert main(["info", "--json"]) == 0
        said = [each for each in json.loads(capsys.readouterr().out)["devices"] if each["kind"] == "cuda"]
        assert main(["info"]) == 0
        shown = capsys.readouterr().out
    assert [each["index"] for each in said] == [0, 1]
    for each in said:
        assert (each["emulated"], each["profile"], each["guarded"]) == (True, "a100", guard)
        assert (each["capability"], each["total_bytes"], each["free_bytes"]) == ("8.0", 3 << 30, 3 << 30)
    for words in ("cuda:1", "(emulated)", " 8.0 ", "3.00 GiB", "profile a100: this machine stands in for it"):
        assert words in shown
    assert ("no, guarded" in shown) == guard


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["--help"], ["--version"], ["doctor"]])
def test_a_reader_that_is_gone_gets_no_traceback(arguments):
    command = [sys.executable, "-m", "forebay", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_full_disk_is_told_in_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "forebay", "info"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, "forebay: error: cannot write: No space left on device\n")


def test_doctor_on_this_installation(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"All {len(CHECKS)} checks passed.\n")
    assert all(check.name in said for check in CHECKS)


def test_doctor_tells_what_failed_how_and_what_to_do(capsys, monkeypatch):
    """GIVEN checks that pass, fail, crash and hang, WHEN the doctor runs them, THEN each is told."""
    codes = {
        "good": "print('well')",
        "bad": "raise AssertionError('not well')",
        "crash": "import os; os.abort()",
        "hang": "while True: pass",
        "mute": "raise SystemExit(3)",
    }
    run = subprocess.run

    def starting(command, **settings):
        return run([sys.executable, "-c", codes[command[-1]]], **settings)

    monkeypatch.setattr(doctor.subprocess, "run", starting)
    monkeypatch.setattr(doctor, "LIMIT", 5.0)
    monkeypatch.setattr(doctor, "CHECKS", [Check(name, lambda: "", f"mend {name}") for name in codes])
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    lines = [line.split(maxsplit=2) for line in said.splitlines() if line[:1] in "✓✗" and line]
    assert lines == [
        ["✓", "good", "well"],
        ["✗", "bad", "AssertionError: not well"],
        ["✗", "crash", "died of SIGABRT"],
        ["✗", "hang", "still not done after 5 s"],
        ["✗", "mute", "ended with status 3"],
    ]
    for name in ("bad", "crash", "hang", "mute"):
        assert f"mend {name}\n" in said
        assert f"forebay doctor --check '{name}'" in said
    assert said.endswith("4 of 5 checks failed\n")


def test_doctor_does_without_check_marks(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert doctor._marks() == ("ok    ", "FAILED", "-     ")


@pytest.mark.parametrize("name", ["native core", "queues", "copies"])
def test_a_check_alone_runs_here_and_says_what_it_found(capsys, name):
    assert main(["doctor", "--check", name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_check_that_fails_says_what_it_found():
    with pytest.raises(AssertionError, match="broken"):
        checks.expect(False, "broken")
