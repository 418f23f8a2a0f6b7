"""The command line: error messages, help, `info` and `doctor`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.commands import checks, doctor, info
from forebay.commands.checks import CHECKS, Check
from forebay.commands.cli import main


def error_of(capsys, *arguments: str) -> str:
    """Return the one-line error message for invalid arguments."""
    try:
        status = main(arguments)
    except SystemExit as error:
        status = error.code
    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert output.err.startswith("forebay: error: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "mend",
            "'mend' is not a command; choose from run, fit, demo, report, ",
        ),
        ("docter", "; did you mean 'doctor'?"),
        ("--verbose", "unrecognized arguments: --verbose; did you mean '--version'? (see forebay --help)"),
        ("run --histroy x.py", "unrecognized arguments: --histroy; did you mean '--history'? (see forebay run --help)"),
        ("info --jsn", "unrecognized arguments: --jsn; did you mean '--json'? (see forebay info --help)"),
        ("run --emulate cdua tests/commands/test_cli.py", "'cdua' is not a kind of device that can be emulated"),
        ("run --emulate cdua tests/commands/test_cli.py", "; did you mean 'cuda'?"),
        ("run --emulate cuda@h20 tests/commands/test_cli.py", "there is no profile 'h20', the nearest is 'h200'"),
        ("run", "no script to run: forebay run train.py"),
        ("run -m", "no module to run: forebay run -m MODULE"),
        ("run --", "no script to run"),
        ("run nosuch.py", "cannot read the script 'nosuch.py': No such file or directory"),
        ("run -c", "no code to run: forebay run -c CODE (see forebay run --help)"),
        ("run /dev/null/x", "cannot read the script '/dev/null/x': Not a directory"),
        ("run a\0b", "cannot read the script 'a\\x00b'"),
        ("run --memory", "argument --memory: expected one argument"),
        ("run --mem 1G x.py", "--mem"),
        ("run --entries 0 x.py", "argument --entries: '0' is not a positive integer"),
        ("run --entries many x.py", "argument --entries: 'many' is not a positive integer"),
        ("run --emulate", "argument --emulate: expected one argument"),
        ("run --emulate cuda:0 x.py", "argument --emulate: 'cuda:0' "),
        ("run --emulate cuda,cuda x.py", "argument --emulate: 'cuda,cuda' names a kind twice"),
        (
            "run --emulate cuda@none tests/commands/test_cli.py",
            "--emulate: there is no profile 'none'; there are a10, ",
        ),
        ("run --emulate mtia@h200 tests/commands/test_cli.py", "--emulate: profile 'h200' is of kind cuda, not mtia"),
        ("run --emulate tpu tests/commands/test_cli.py", "--emulate: 'tpu' is not a kind of device"),
        (
            "run --guard tests/commands/test_cli.py",
            "--guard requires emulated devices, as in --emulate cuda:2",
        ),
        ("info now", "unrecognized arguments: now"),
        ("doctor --check luck", "unknown check 'luck'; choose from 'native core', "),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, arguments, words):
    assert words in error_of(capsys, *arguments.split(" "))
    assert "FOREBAY_EMULATE" not in os.environ


@pytest.mark.parametrize("size", ["12 bananas", "", "-1", "0", "1e3", "16 MiBs", "9999999T", "٣"])
def test_invalid_size_error_shows_accepted_formats(capsys, size):
    output = error_of(capsys, "run", f"--memory={size}", "x.py")
    assert f"argument --memory: {size!r} is not a size; write a number above 0 and a unit, as in 4096, 512k" in output


@pytest.mark.parametrize("option", ["--sample", "--reserve"])
def test_size_that_may_be_zero_says_so(capsys, option):
    with pytest.raises(SystemExit):
        main(["run", f"{option}=-1x", "program.py"])
    assert "'-1x' is not a size; write 0, or a number above 0 and a unit" in capsys.readouterr().err


def test_unreadable_script_is_reported(capsys, monkeypatch):
    def raise_permission_error(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "open_code", raise_permission_error)
    assert "cannot read the script 'x.py': Permission denied" in error_of(capsys, "run", "x.py")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["replay", "--help"], ["doctor", "--help"], ["info"]]
)
def test_output_fits_the_terminal(capsys, monkeypatch, arguments, width):
    monkeypatch.setenv("COLUMNS", str(width))
    with contextlib.suppress(SystemExit):
        main(arguments)
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["info", "--help"], ["doctor", "-h"]])
def test_help_is_printed_to_standard_output(capsys, arguments):
    try:
        status = main(arguments)
    except SystemExit as error:
        status = error.code
    output = capsys.readouterr()
    assert (status or 0, output.err) == (0, "")
    assert output.out.startswith("usage: forebay")


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version_is_printed(capsys, option):
    assert main([option]) == 0
    assert capsys.readouterr().out == f"forebay {forebay.__version__}\n"


def test_info_prints_json(capsys):
    assert main(["info", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    host = next(device for device in output["devices"] if device["kind"] == "cpu")
    assert host["host_visible"]
    assert 0 < host["free_bytes"] <= host["total_bytes"]
    assert output["versions"]["forebay"] == forebay.__version__
    present = {device["kind"] for device in output["devices"]}
    assert {"cuda", "mps", "mtia"} <= present | output["missing"].keys()
    assert all(output["missing"].values())


def test_info_shows_the_reason_without_the_text_of_pytorch(capsys):
    for arguments in (["info"], ["info", "--json"]):
        assert main(arguments) == 0
        assert "nvidia.com" not in capsys.readouterr().out
    assert "nvidia.com" in forebay.why_not("cuda")


def test_info_prints_a_table(capsys, monkeypatch):
    broken = {"kind": "mtia", "index": 1, "error": "[red]not available[/red]"}
    monkeypatch.setattr(info, "devices", lambda: [device(), broken])
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    for words in ("cpu", "Some CPU", "2.00 GiB", "1.00 GiB", "mtia:1", "[red]not available[/red]", "numpy"):
        assert words in output


def device(**changes) -> dict:
    sizes = {"kind": "cpu", "index": 0, "name": "Some CPU", "total_bytes": 2 << 30, "free_bytes": 1 << 30}
    details = {"host_visible": True, "capability": None, "profile": None, "guarded": False, "error": None}
    return sizes | details | changes


@pytest.mark.parametrize("guard", [False, True], ids=["plain", "guarded"])
def test_info_shows_emulated_devices(capsys, monkeypatch, guard):
    monkeypatch.setenv("COLUMNS", "160")
    with forebay.emulate("cuda", count=2, profile="a100", memory="3GiB", guard=guard):
        assert main(["info", "--json"]) == 0
        output = [each for each in json.loads(capsys.readouterr().out)["devices"] if each["kind"] == "cuda"]
        assert main(["info"]) == 0
        shown = capsys.readouterr().out
    assert [each["index"] for each in output] == [0, 1]
    for each in output:
        assert (each["emulated"], each["profile"], each["guarded"]) == (True, "a100", guard)
        assert (each["capability"], each["total_bytes"], each["free_bytes"]) == ("8.0", 3 << 30, 3 << 30)
    for words in ("cuda:1", "(emulated)", " 8.0 ", "3.00 GiB", "emulated with profile a100"):
        assert words in shown
    assert ("no, guarded" in shown) == guard


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_script_is_printed(capsys, shell):
    pytest.importorskip("shtab", reason="makes the scripts")
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("doctor", "--emulate", "--settings", "--abilities"):
        assert word.lstrip("-") in script


def test_bash_completes_options_and_commands(capsys):
    pytest.importorskip("shtab", reason="makes the scripts")
    if (bash := shutil.which("bash")) is None:
        pytest.skip("runs bash")
    main(["--print-completion", "bash"])
    asks = "\nCOMP_WORDS=(forebay run --emu); COMP_CWORD=2; _shtab_forebay forebay; echo ${COMPREPLY[@]}"
    done = subprocess.run([bash, "-c", capsys.readouterr().out + asks], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["--emulate"]


def test_completion_without_shtab_is_explained(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "--print-completion needs the package shtab: pip install shtab" in error_of(
        capsys, "--print-completion", "bash"
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["--help"], ["--version"], ["doctor"]])
def test_closed_pipe_prints_no_traceback(arguments):
    command = [sys.executable, "-m", "forebay", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_full_disk_is_reported_in_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "forebay", "info"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, "forebay: error: cannot write: No space left on device\n")


@pytest.mark.slow
def test_doctor_passes_on_this_installation(capsys):
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    devices = [line for line in output.splitlines() if line.startswith("✓ device ")]
    assert devices
    assert output.endswith(f"All {len(CHECKS) + len(devices)} checks passed.\n")
    assert all(check.name in output for check in CHECKS)


@pytest.mark.slow
def test_doctor_reports_failures_crashes_and_timeouts_with_remedies(capsys, monkeypatch):
    codes = {
        "good": "print('well')",
        "bad": "raise AssertionError('not well')",
        "crash": "import os; os.abort()",
        "hang": "while True: pass",
        "mute": "raise SystemExit(3)",
    }
    start = subprocess.Popen

    def start_code(command, **settings):
        return start([sys.executable, "-c", codes[command[-1]]], **settings)

    monkeypatch.setattr(doctor.subprocess, "Popen", start_code)
    monkeypatch.setattr(doctor, "LIMIT", 5.0)
    monkeypatch.setattr(doctor, "CHECKS", [Check(name, lambda: "", f"fix {name}") for name in codes])
    assert main(["doctor", "--no-devices"]) == 1
    output = capsys.readouterr().out
    lines = [line.split(maxsplit=2) for line in output.splitlines() if line[:1] in "✓✗" and line]
    assert lines == [
        ["✓", "good", "well"],
        ["✗", "bad", "AssertionError: not well"],
        ["✗", "crash", "killed by SIGABRT"],
        ["✗", "hang", "not finished after 5 s"],
        ["✗", "mute", "exited with status 3"],
    ]
    for name in ("bad", "crash", "hang", "mute"):
        assert f"fix {name}\n" in output
        assert f"forebay doctor --check '{name}'" in output
    assert output.endswith("4 of 5 checks failed\n")


def test_doctor_prints_json_or_failures_only(capsys, monkeypatch):
    outcomes = {"core": (True, "well"), "bad": (False, "not well")}
    monkeypatch.setattr(doctor, "CHECKS", [Check(name, lambda: "", f"fix {name}") for name in outcomes])
    monkeypatch.setattr(doctor, "_run_child", lambda *arguments: outcomes[arguments[-1]])
    assert main(["doctor", "--json", "--no-devices"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "passed": False,
        "failed": 1,
        "checks": [
            {"check": "core", "passed": True, "message": "well", "remedy": None},
            {"check": "bad", "passed": False, "message": "not well", "remedy": "fix bad"},
        ],
    }
    assert main(["doctor", "--quiet", "--no-devices"]) == 1
    output = capsys.readouterr().out
    assert "well" in output
    assert "core" not in output
    outcomes["bad"] = True, "well"
    assert main(["doctor", "--quiet", "--no-devices"]) == 0
    assert capsys.readouterr().out == ""


def test_doctor_without_unicode_check_marks(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert doctor._marks() == ("ok    ", "FAILED", "-     ")


@pytest.mark.parametrize("name", ["native core", "queues", "copies"])
def test_single_check_prints_one_line(capsys, name):
    assert main(["doctor", "--check", name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_failed_check_raises_its_message():
    with pytest.raises(AssertionError, match="broken"):
        checks.expect(False, "broken")
