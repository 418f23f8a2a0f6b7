"""`dev.py mac`, rehearsed on the stand-in, and verified.toml from the file of a run."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
from support import metal_processes

DAY = dt.date(2026, 11, 25)
LIMIT = 200  # seconds


@pytest.fixture
def mac(root, monkeypatch):
    """The modules of tools/mac."""
    monkeypatch.syspath_prepend(root / "tools")
    import mac.__main__ as command
    from mac import machine, results

    class Modules:
        pass

    made = Modules()
    made.command, made.machine, made.results = command, machine, results
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mac", "gpu", "steps")]:
        del sys.modules[name]


@pytest.fixture
def run(mac):
    """A complete run on hardware, in which every part is ok."""
    machine = mac.machine.Machine(
        'Apple "M9"', 12, "Apple11", 16 << 30, 11 << 30, "macOS 27.1", "arm64", "3.13.1", "12.2", software=False
    )
    parts = [
        mac.results.PartResult(part.name, part.title, "ok", f"3 of {part.name}", ("a line",), 2.0)
        for part in mac.command.PARTS
    ]
    return mac.results.Run(machine, DAY, "python3 dev.py mac", True, parts)


def test_page_is_read_back(mac, run):
    page = run.page()
    assert '* GPU: Apple "M9", 12 cores, family Apple11' in page
    assert "| Conformance suite | ok | 3 of conformance | 2 s |" in page
    assert "Nothing is verified" not in page
    assert mac.results.read(page) == replace(run, parts=[*run.parts])


def test_run_on_hardware_is_accepted(mac, run, root, tmp_path, monkeypatch, capsys):
    file, verified = tmp_path / "forebay-mac.md", tmp_path / "verified.toml"
    verified.write_text((root / "src/forebay/backends/verified.toml").read_text())
    before = tomllib.loads(verified.read_text())["run"]
    monkeypatch.setattr(mac.command, "VERIFIED", verified)
    monkeypatch.setattr(mac.command, "ROOT", tmp_path)
    file.write_text(run.page())
    for _ in range(2):  # the second one replaces the first
        assert mac.command.main(["--accept", str(file)]) == 0
    *others, added = tomllib.loads(verified.read_text())["run"]
    assert others == before
    assert (added["kind"], added["on"], added["when"]) == ("mps", 'Apple "M9", macOS 27.1', DAY)
    assert added["how"].startswith("python3 dev.py mac: conformance: 3 of conformance; names: ")
    assert capsys.readouterr().out.count("written: verified.toml") == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"complete": False}, "the run was not complete"),
        ({"software": True}, "it was a rehearsal on tests/softmetal, without hardware"),
        ({"status": "failed"}, "not ok: Conformance suite"),
        ({"status": "not run"}, "not ok: Conformance suite"),
        ({"parts": 1}, "the run was not complete"),
    ],
)
def test_other_runs_are_refused(mac, run, tmp_path, change, reason):
    if "complete" in change:
        run = replace(run, complete=False)
    if "software" in change:
        run = replace(run, machine=replace(run.machine, software=True))
    if "status" in change:
        run = replace(run, parts=[replace(run.parts[0], status=change["status"]), *run.parts[1:]])
    if "parts" in change:
        run = replace(run, parts=run.parts[:1])
    assert f"**Nothing is verified: {reason}.**" in run.page()
    file = tmp_path / "page.md"
    file.write_text(run.page())
    with pytest.raises(SystemExit, match=f"verifies nothing: {reason}"):
        mac.command.main(["--accept", str(file)])


@pytest.mark.parametrize(
    "text", ["", "# a page\n", "```json\n[]\n```\n", '```json\n{"day": 3}\n```\n', "```json\n{\n```\n"]
)
def test_other_files_are_refused(mac, tmp_path, text):
    file = tmp_path / "page.md"
    file.write_text(text)
    with pytest.raises(SystemExit, match="verifies nothing"):
        mac.command.main(["--accept", str(file)])


def on_stand_in(root, *arguments):
    environment = metal_processes.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(root / "tools"), environment["PYTHONPATH"]])
    command = [sys.executable, "-m", "mac", *map(str, arguments)]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@pytest.mark.timeout(LIMIT + 20)
def test_rehearsal_runs_to_its_end_and_verifies_nothing(root, tmp_path):
    done = on_stand_in(root, "--quick", "--output", tmp_path / "page.md")
    assert done.returncode == 0, done.stdout + done.stderr
    for title in ("Conformance suite", "Names of torch.mps", "Random numbers beside the CPU device's", "Benchmarks"):
        assert f"{title} ... ok after" in done.stdout
    page = (tmp_path / "page.md").read_text()
    assert "**Nothing is verified: it was a rehearsal on tests/softmetal, without hardware.**" in page
    assert "| fill 16 MiB | µs |" in page


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_reason_is_given_without_a_gpu(mac):
    with pytest.raises(SystemExit, match="no GPU to test: Metal needs macOS"):
        mac.command.main([])
