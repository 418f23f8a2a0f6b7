"""Programs whose environment is not forebay's: `uvx forebay fit train.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from forebay.commands import CommandError, program_environment, programs
from forebay.commands.cli import main
from forebay.commands.program_environment import continue_there, need_torch

ABI = sysconfig.get_config_var("SOABI")
PROGRAM = """import os, sys, numpy, mine
print(sys.prefix, mine.NAME, len(numpy.ones(1 << 20)), os.environ["VIRTUAL_ENV"])
sys.exit(7)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return an environment with a package of its own, and without NumPy."""
    folder = tmp_path_factory.mktemp("program") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    Path(packages, "mine.py").write_text("NAME = 'of the program'\n")
    return folder


@pytest.fixture
def isolated(monkeypatch, tmp_path):
    """Let forebay be in an environment of its own, with no other one around."""
    monkeypatch.setattr(program_environment, "is_isolated", lambda: True)
    monkeypatch.setattr(program_environment, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.chdir(tmp_path)


def interpreter(folder, **facts):
    """Make an interpreter that says something about its environment."""
    said = {"abi": ABI, "python": [3, 12, 1], "prefix": str(folder), "numpy": "2.2.0", "present": ["torch", "pip"]}
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin/python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(said | facts)}'\n")
    python.chmod(0o700)
    return folder


@pytest.mark.parametrize("by", ["VIRTUAL_ENV", ".venv above"])
def test_command_runs_with_the_packages_of_the_programs_environment(
    environment, isolated, tmp_path, monkeypatch, capfd, by
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    if by == "VIRTUAL_ENV":
        monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    else:
        below = environment.parent / "a/b"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
    assert continue_there(["run", "--output", str(tmp_path / "report"), str(program)]) == 7
    output, errors = capfd.readouterr()
    assert output.split(maxsplit=1) == [str(environment), f"of the program {1 << 20} {environment}\n"]
    assert f"using the environment of the program, {environment}\n" in errors
    assert "8.00 MiB" in errors  # the report has the program's array
    assert (tmp_path / "report/report.html").exists()
    assert not [*tmp_path.glob("forebay-environment-*")]


def test_signal_that_ends_the_program_is_its_status(environment, isolated, tmp_path, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    (tmp_path / "program.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert continue_there(["run", "--output", str(tmp_path / "report"), "program.py"]) == 128 + 9


def test_without_another_environment_the_command_runs_here(isolated):
    assert continue_there(["run", "program.py"]) is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"abi": "cpython-399"}, "has Python 3.12.1 (cpython-399), and forebay is installed for"),
        ({"python": [3, 10, 4], "abi": "cpython-310"}, "has Python 3.10.4: forebay needs 3.11 or later"),
        ({"numpy": "1.26.4"}, "has NumPy 1.26.4: forebay needs 2.1.1 or later. Update it: "),
    ],
)
def test_environment_that_does_not_suit_is_refused_with_what_to_do(isolated, tmp_path, monkeypatch, facts, said):
    folder = interpreter(tmp_path / "venv", **facts)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    with pytest.raises(CommandError) as error:
        need_torch(["fit", "train.py"])
    assert said in str(error.value)
    assert "install torch" not in str(error.value)


@pytest.mark.parametrize(
    ("prefix", "present", "command"),
    [
        ("/cache/archive-v0/abc", ["torch"], "uvx --python {python} forebay fit train.py"),
        ("/opt/pipx", ["torch", "pip"], "{python} -m pip install forebay && {python} -m forebay fit train.py"),
        ("/opt/pipx", ["torch"], "uv pip install --python {python} forebay && {python} -m forebay fit train.py"),
    ],
)
def test_other_abi_is_answered_with_the_command_that_works(isolated, tmp_path, monkeypatch, prefix, present, command):
    folder = interpreter(tmp_path / "venv", abi="cpython-399", present=present)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "argv", ["forebay", "fit", "train.py"])
    monkeypatch.setattr(program_environment, "_source", list)
    with pytest.raises(CommandError) as error:
        need_torch(["fit", "train.py"])
    assert str(error.value).endswith(f"This command works: {command.format(python=folder / 'bin/python')}")


def test_file_that_forebay_was_installed_from_is_part_of_the_command(monkeypatch):
    class Installed:
        def read_text(self, name):
            return json.dumps({"url": "file:///a%20b/forebay.whl", "archive_info": {}})

    monkeypatch.setattr(program_environment.metadata, "distribution", lambda name: Installed())
    assert program_environment._source() == ["--from", "/a b/forebay.whl"]


def test_missing_pytorch_is_said_with_the_places_and_without_asking_for_an_installation(
    isolated, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("VIRTUAL_ENV", str(interpreter(tmp_path / "venv", present=[])))
    (tmp_path / "train.py").touch()
    assert main(["fit", "train.py"]) == 2
    said = capsys.readouterr().err
    assert f"Looked in {tmp_path / 'venv'}, which has none either; .venv in {tmp_path} and above" in said
    assert "install forebay there" in said
    assert "install torch" not in said


@pytest.mark.parametrize("broken", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho nothing\n", "#!/nowhere\n", "#!/bin/sh\n"])
def test_interpreter_that_does_not_start_is_no_environment(isolated, tmp_path, monkeypatch, broken):
    folder = interpreter(tmp_path / "venv")
    (folder / "bin/python").write_text(broken)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    with pytest.raises(CommandError, match="PyTorch is not installed"):
        need_torch(["fit", "train.py"])


@pytest.mark.parametrize(
    ("made", "expected"),
    [({}, False), ({"uv-receipt.toml": ""}, True), ({"pipx_metadata.json": "{}"}, True), ({"pyvenv.cfg": ""}, False)],
)
def test_environments_of_uv_and_pipx_are_recognized(tmp_path, monkeypatch, made, expected):
    for name, text in made.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert programs.is_isolated() == expected


def test_cached_environment_of_uvx_is_recognized_and_a_project_made_by_uv_is_not(tmp_path, monkeypatch):
    for folder, expected in (("archive-v0/name", True), ("project/.venv", False)):
        prefix = tmp_path / folder
        prefix.mkdir(parents=True)
        (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.0\n")
        monkeypatch.setattr(sys, "prefix", str(prefix))
        assert programs.is_isolated() == expected
