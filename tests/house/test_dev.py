"""dev.py: the core is rebuilt if and only if one of its inputs has changed; commit messages are checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

COMPILED = ("src/forebay/_core", "src/forebay/observe/tracing/_entries")
CORE, ENTRIES = COMPILED
INPUTS = [
    "pyproject.toml",
    "setup.py",
    "native/pool/pool.cpp",
    "native/pool/pool.hpp",
    CORE + ".pyx",
    CORE + ".pxd",
    CORE + ".pxi",
    ENTRIES + ".pyx",
]
OTHERS = ["README.md", "dev.py", "native/notes.md", "src/forebay/spi/required.py", CORE + ".pyi", CORE + ".cpp"]


@pytest.fixture
def tree(tmp_path):
    for name in INPUTS + OTHERS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before\n")
    return tmp_path


@pytest.mark.parametrize("name", INPUTS)
def test_changed_input_changes_the_fingerprint(dev, tree, name):
    before = dev.fingerprint(tree)
    (tree / name).write_text("after!\n")
    assert dev.fingerprint(tree) != before


@pytest.mark.parametrize("name", OTHERS)
def test_other_file_does_not_change_the_fingerprint(dev, tree, name):
    before = dev.fingerprint(tree)
    (tree / name).write_text("after!\n")
    assert dev.fingerprint(tree) == before


def test_new_or_renamed_source_changes_the_fingerprint(dev, tree):
    prints = [dev.fingerprint(tree)]
    (tree / "native/pool/rings.hpp").write_text("")
    prints.append(dev.fingerprint(tree))
    (tree / "native/pool/rings.hpp").rename(tree / "native/pool/ring_buffers.hpp")
    prints.append(dev.fingerprint(tree))
    assert len({*prints}) == 3


def test_touched_file_does_not_change_the_fingerprint(dev, tree):
    before = dev.fingerprint(tree)
    (tree / "setup.py").touch()
    assert dev.fingerprint(tree) == before


@pytest.fixture
def calls(dev, tmp_path, monkeypatch):
    """Return the list of steps that dev.py has run; pip only logs, and a build creates empty modules."""
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["builder"]\n[project]\ndependencies = ["core"]\n'
        '[project.optional-dependencies]\ntest = ["tester"]\ncheck = ["checker"]\n'
        'numba = ["numba"]\ntorch = ["jax", "torch"]\n'
    )
    for module in COMPILED:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{module}.pyx").touch()
    (tmp_path / "src/forebay_startup.pth").touch()
    steps: list[str] = []

    def pip(purpose, *arguments, python=dev.PYTHON):
        steps.append(purpose)
        if "--editable" in arguments:
            suffix = dev.sysconfig.get_config_var("EXT_SUFFIX")
            for module in COMPILED:
                (tmp_path / f"{module}{suffix}").touch()

    def environment():
        steps.append("creating")
        packages = sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")})
        Path(packages).mkdir(parents=True, exist_ok=True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "VENV", tmp_path / "venv")
    monkeypatch.setattr(dev, "STAMP", tmp_path / "venv/stamp.json")
    monkeypatch.setattr(dev, "PYTHON", sys.executable)
    monkeypatch.setattr(dev, "make_environment", environment)
    monkeypatch.setattr(dev, "pip", pip)
    return steps


EVERYTHING = ["creating", "installing requirements", "building forebay"]


def test_first_task_runs_all_steps_and_second_none(dev, calls):
    dev.prepare("test")
    assert calls == EVERYTHING
    dev.prepare("test")
    assert calls == EVERYTHING


def test_another_extra_installs_without_building(dev, calls):
    dev.prepare("test")
    dev.prepare("check")
    dev.prepare("test")
    assert calls == [*EVERYTHING, "installing requirements"]
    stamp = json.loads(dev.STAMP.read_text())
    assert stamp["requirements"] == ["builder", "checker", "core", "tester"]


def test_changed_input_only_builds(dev, calls, tmp_path):
    dev.prepare("test")
    (tmp_path / "setup.py").write_text("changed")
    dev.prepare("test")
    assert calls == [*EVERYTHING, "building forebay"]


@pytest.mark.parametrize("module", COMPILED)
def test_missing_module_is_rebuilt(dev, calls, tmp_path, module):
    dev.prepare("test")
    (module_file,) = tmp_path.glob(f"{module}*{dev.sysconfig.get_config_var('EXT_SUFFIX')}")
    module_file.unlink()
    dev.prepare("test")
    assert calls == [*EVERYTHING, "building forebay"]


def test_another_interpreter_repeats_all_steps(dev, calls, monkeypatch):
    dev.prepare("test")
    monkeypatch.setattr(dev, "interpreter", lambda: "another")
    dev.prepare("test")
    assert calls == [*EVERYTHING, *EVERYTHING]


@pytest.mark.parametrize("broken_at", ["installing requirements", "building forebay"])
def test_interrupted_step_is_repeated(dev, calls, tmp_path, monkeypatch, broken_at):
    dev.prepare("test")
    pip = dev.pip

    def interrupted(purpose, *arguments, **options):
        if purpose == broken_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dev, "pip", interrupted)
        (tmp_path / "setup.py").write_text("changed")
        with pytest.raises(KeyboardInterrupt):
            dev.prepare("test", "check")
    calls.clear()
    dev.pip = pip
    dev.prepare("test")
    assert broken_at in calls


only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="numba-cuda is installed on Linux only")
INSTALLATIONS = ["installing numba-cuda, CuPy and RMM", "installing PyTorch and JAX"]


@only_on_linux
def test_libraries_are_installed_beside_again_only_after_a_change(dev, calls, tmp_path):
    dev.prepare("test")
    calls.clear()
    for _ in range(2):
        dev.prepare_beside()
    assert calls == INSTALLATIONS
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace('"numba"', '"numba>=2"'))
    dev.prepare_beside()
    dev.prepare("check")
    dev.prepare_beside()
    changed = ["installing requirements", "building forebay"]
    assert calls == [*INSTALLATIONS, "installing numba-cuda, CuPy and RMM", *changed]
    shutil.rmtree(tmp_path / "venv/torch")
    dev.prepare_beside("numba")
    dev.prepare_beside()
    assert calls[5:] == ["installing PyTorch and JAX"]


@only_on_linux
def test_failing_installation_beside_is_reported_and_repeated(dev, calls, monkeypatch, capsys, tmp_path):
    dev.prepare("test")
    pip = dev.pip

    def offline(purpose, *arguments, **options):
        if "numba" in purpose:
            dev.fail("no network")
        pip(purpose, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(dev, "pip", offline)
        dev.prepare_beside()
    assert "no network\ndev.py: the tests of numba-cuda, CuPy and RMM will be skipped" in capsys.readouterr().out
    assert [(tmp_path / "venv" / extra).exists() for extra in ("numba", "torch")] == [False, True]
    dev.prepare_beside()
    assert calls == [*EVERYTHING, "installing PyTorch and JAX", "installing numba-cuda, CuPy and RMM"]
    assert (tmp_path / "venv/numba").exists()


@only_on_linux
def test_environment_beside_finds_the_packages_of_the_other_one(dev, calls, tmp_path):
    dev.prepare("test")
    dev.prepare_beside("numba")
    folder = tmp_path / "venv/numba"
    (below,) = folder.glob("lib/python*/site-packages")
    above = tmp_path / "venv" / below.relative_to(folder)
    for place, names in ((above, ("one", "both")), (below, ("both",))):
        for name in names:
            (place / f"{name}.py").write_text("")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/editable.py").write_text("")
    (above / "editable.pth").write_text(str(tmp_path / "source"))
    program = "import both, editable, one; print(both.__file__, one.__file__, editable.__file__, sep='\\n')"
    found = subprocess.run([folder / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    files = [Path(line).resolve() for line in found.stdout.splitlines()]
    assert files == [below / "both.py", above / "one.py", tmp_path / "source/editable.py"]


def test_foreign_folder_is_not_changed(dev, tmp_path, monkeypatch):
    (tmp_path / "precious.txt").write_text("mine")
    monkeypatch.setattr(dev, "VENV", tmp_path)
    monkeypatch.setattr(dev, "STAMP", tmp_path / "stamp.json")
    with pytest.raises(SystemExit, match="was not made by"):
        dev.make_environment()
    assert (tmp_path / "precious.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("missing", "remedy"), [("ensurepip", "python3-venv"), ("CXX", r"g\+\+"), ("include", "python3-dev")]
)
def test_error_names_the_missing_tool_and_its_remedy(dev, tmp_path, monkeypatch, missing, remedy):
    monkeypatch.setattr(dev, "VENV", tmp_path / "venv")
    monkeypatch.setattr(dev, "STAMP", tmp_path / "venv/stamp.json")
    if missing == "ensurepip":
        monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    elif missing == "CXX":
        monkeypatch.setenv("CXX", "no-such-compiler")
    else:
        monkeypatch.setattr(dev.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(SystemExit, match=remedy):
        dev.make_environment()
    assert not (tmp_path / "venv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--help"], 0), (["tset"], 2)])
def test_usage_lists_all_tasks(dev, root, arguments, status):
    command = [sys.executable, root / "dev.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert all(f"\n    {task} " in done.stdout for task in dev.TASKS)


@pytest.mark.parametrize(
    ("message", "problems"),
    [
        ("Cache the hash of devices\n\nIt took 200 ns.", 0),
        ("Cache the hash of devices", 1),
        ("cached hash.\n\nIt took 200 ns.", 3),
        ("Caching of the hash\nIt took 200 ns.", 2),
        (f"Cache {'x' * 70}\n\nIt took 200 ns.", 1),
    ],
)
def test_commit_messages_are_checked(dev, message, problems):
    assert len(dev.message_problems(f"abc1234\n{message}")) == problems


def test_message_in_a_file_is_checked(dev, tmp_path, capsys):
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("Cache the hash of devices\n\nIt took 200 ns.\n# Please enter the commit message\n")
    assert dev.message([str(file)]) == 0
    file.write_text("cached.\n# comment\n")
    assert dev.message([str(file)]) == 1
    assert "does not begin with a capital letter" in capsys.readouterr().out


def test_child_processes_of_tests_read_bytecode(dev, monkeypatch):
    """Without it, each of them would compile all that it imports."""
    commands = []
    monkeypatch.setattr(dev, "run", lambda command: commands.append(command) or 0)
    monkeypatch.setattr(dev, "prepare", lambda *_: None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    dev.test(["--quick"])
    assert "PYTHONDONTWRITEBYTECODE" not in dev.os.environ
    assert commands[0][:2] == ["python", "tools/suite.py"]
