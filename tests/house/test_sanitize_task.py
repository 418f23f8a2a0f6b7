"""`dev.py sanitize`: its commands, and what counts as a failure. Nothing is compiled here."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="a library is loaded before the interpreter")


@pytest.fixture
def sanitize(root, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(root / "tools")
    import sanitize

    monkeypatch.setattr(sanitize, "BUILD", tmp_path)
    yield sanitize
    for name in ("sanitize", "steps"):
        sys.modules.pop(name, None)


@pytest.fixture
def harmless(sanitize, tmp_path):
    """A sanitizer whose library every program has."""
    (tmp_path / "address/tree").mkdir(parents=True)
    return replace(sanitize.SANITIZERS["address"], library="libc.so.6", variables={})


def test_modules_are_built_in_a_folder_for_each_sanitizer(sanitize, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(sanitize, "copy_sources", lambda tree: None)
    monkeypatch.setattr(sanitize, "call", lambda *arguments, **variables: calls.append((arguments, variables)))
    for sanitizer in sanitize.SANITIZERS.values():
        sanitize.build(sanitizer)
    for name, checks, ((_, command, folder), variables) in zip(
        ("thread", "address"), ("thread", "address,undefined"), calls, strict=True
    ):
        assert command == [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        assert folder == tmp_path / name / "tree"
        assert variables["FOREBAY_CFLAGS"].split()[-1] == f"-fsanitize={checks}"


def test_flags_of_the_native_tests_are_used(sanitize, root):
    native = (root / "tests/native/test_sanitizers.py").read_text()
    assert "-fno-sanitize-recover=all" in native
    assert "-fno-sanitize-recover=all" in sanitize.FLAGS.split()
    for sanitizer in sanitize.SANITIZERS.values():
        assert f'"{sanitizer.checks}"' in native


def test_programs_are_the_stress_the_conformance_suite_and_the_readers(sanitize, root):
    programs = sanitize.programs(sanitize.SANITIZERS["thread"], 7)
    for command in programs.values():
        assert ("pytest" in command) == (sanitize.SANITIZERS["thread"].deselected in command)
    programs = sanitize.programs(sanitize.SANITIZERS["address"], 7)
    assert [command[1:] for what, command in programs.items() if "stress" in what] == [
        ["support.stress", "", "7", "1073741824"],
        ["support.stress", "expandable_segments:True", "7", "1073741824"],
    ]
    paths = [word for command in programs.values() for word in command if word.startswith("tests/")]
    assert paths[0] == "tests/test_conformance.py"
    assert [path for path in paths if not (root / path).exists()] == []


@linux
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the compiler names its libraries")
def test_program_runs_with_the_library_and_its_options(sanitize, harmless, tmp_path):
    (tmp_path / "address/report.1").write_text("old")
    program = """
import os, sys
options = dict(option.split("=", 1) for option in os.environ["ASAN_OPTIONS"].split(":"))
assert os.path.exists(options["suppressions"]), options
first, second = os.environ["LD_PRELOAD"].split()
assert os.path.isabs(first) and second.endswith("libstdc++.so.6")
assert sys.path[1].endswith("address/tree/src") and sys.path[2].endswith("address/tree/tests"), sys.path
assert os.getcwd().endswith("address/tree") and not os.path.exists(options["log_path"] + ".1")
if len(sys.argv) > 1:
    open(options["log_path"] + ".7", "w").write("a report")
"""
    assert not sanitize.run(harmless, ["-c", program])
    assert sanitize.run(harmless, ["-c", program, "with a report"])
    assert sanitize.run(harmless, ["-c", "raise SystemExit(3)"])


@linux
def test_task_fails_if_a_program_fails(sanitize, monkeypatch, capsys):
    monkeypatch.setattr(sanitize, "build", lambda sanitizer: None)
    monkeypatch.setattr(sanitize, "run", lambda sanitizer, command: "tests/test_conformance.py" in command)
    assert sanitize.main(["thread"]) == 1
    assert capsys.readouterr().out == "failed  thread: conformance\n"
    monkeypatch.setattr(sanitize, "run", lambda sanitizer, command: False)
    assert sanitize.main(["--seconds", "1"]) == 0
    with pytest.raises(SystemExit) as raised:
        sanitize.main(["memory"])
    assert raised.value.code == 2


def test_suppressions_have_reasons(sanitize):
    for variable, entries in sanitize.suppressions().items():
        assert variable in {name for each in sanitize.SANITIZERS.values() for name in each.options}
        assert all(len(reason) > 20 for reason in entries.values())


def test_sources_are_copied_if_they_have_changed(sanitize, monkeypatch, tmp_path):
    root, tree = tmp_path / "root", tmp_path / "tree"
    (root / "native").mkdir(parents=True)
    (root / "native/a.cpp").write_text("one")
    monkeypatch.setattr(sanitize, "ROOT", root)
    monkeypatch.setattr(sanitize, "output", lambda command: "native/a.cpp\0absent.py\0")
    sanitize.copy_sources(tree)
    first = (tree / "native/a.cpp").stat().st_ino, (tree / "native/a.cpp").stat().st_mtime_ns
    sanitize.copy_sources(tree)
    assert ((tree / "native/a.cpp").stat().st_ino, (tree / "native/a.cpp").stat().st_mtime_ns) == first
    (root / "native/a.cpp").write_text("two")
    sanitize.copy_sources(tree)
    assert (tree / "native/a.cpp").read_text() == "two"
    assert not (tree / "absent.py").exists()
