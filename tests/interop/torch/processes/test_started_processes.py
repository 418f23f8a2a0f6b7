"""Processes that a program starts with options and environments which would drop the emulation."""

from __future__ import annotations

import os

import pytest
from support.recorded_programs import sections

from forebay._base.verdicts import Verdict
from forebay.interop.torch.processes import started_processes
from forebay.interop.torch.processes.started_processes import OwnVariables, with_start

GIB = 1 << 30
START = started_processes._START

# Without PYTHONPATH, the code finds `use` by the path of its parent.
BEGIN = """
code = f"import sys\\nsys.path[:0] = {sys.path!r}\\nfrom use import *\\nuse()\\n"
def write(text=code):
    with open("child.py", "w") as file:
        file.write(text)
"""
STARTS = sections("""
    = isolated
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    = isolated script
    write()
    subprocess.run([sys.executable, "-Xdev", "-W", "ignore", "-IB", "child.py"], check=True)
    = isolated input
    subprocess.run([sys.executable, "-I", "-"], input=code, text=True, check=True)
    = module
    write()
    subprocess.run([sys.executable, "-E", "-mchild"], check=True)
    = joined options
    subprocess.run([sys.executable, "-Ec", code], check=True)
    = without site
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    = empty environment
    subprocess.run([sys.executable, "-c", code], env={}, check=True)
    = other path
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": "/"}, check=True)
    = cleared environment
    os.environ.clear()
    subprocess.run([sys.executable, "-c", code], check=True)
    = shell with an empty environment
    subprocess.run(["sh", "-c", sys.executable + ' -c "$1"; true', "sh", code], env={}, check=True)
    = system with a cleared environment
    os.environ.clear()
    import shlex
    assert os.system(f"{sys.executable} -c {shlex.quote(code)}") == 0
    = exec
    os.execve(sys.executable, ["python", "-I", "-c", code], {})
    = exec with a cleared environment
    os.environ.clear()
    os.execv(sys.executable, ["python", "-I", "-c", code])
    = posix_spawn
    pid = os.posix_spawn(sys.executable, ["python", "-I", "-c", code], {})
    assert os.waitpid(pid, 0)[1] == 0
    = spawnve
    assert os.spawnve(os.P_WAIT, sys.executable, ["python", "-I", "-c", code], {}) == 0
    = isolated process of an isolated one
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {code!r}], env={{}}, check=True)"
    subprocess.run([sys.executable, "-I", "-c", inner], env={}, check=True)
    = spawn of an isolated process
    main = "if __name__ == '__main__':\\n  p = multiprocessing.get_context('spawn').Process(target=use); p.start(); p.join()\\n"
    write(code.replace("use()", main + "  assert p.exitcode == 0"))
    subprocess.run([sys.executable, "-I", "child.py"], env={}, check=True)
""")  # noqa: E501 -- one line of a program


@pytest.mark.skipif(os.name != "posix", reason="the functions are those of POSIX")
@pytest.mark.parametrize("source", STARTS.values(), ids=STARTS)
def test_process_counts_with_any_options_and_environment(programs, source):
    found = programs.run(f"{BEGIN}{source}")
    assert programs.status == 0, programs.output
    assert found.judge().verdict is Verdict.FITS, programs.output
    (device,) = found.devices
    assert device.events.reserved == GIB


FORMS = [
    (["-c", "import sys; print(sys.argv, __name__, sys.path[0], sys.orig_argv)", "a"], ""),
    (["child.py", "-c"], ""),
    (["-m", "child", "a"], ""),  # without the folder on the path, an error
    (["-", "a"], "import sys; print(sys.argv)"),
    ([], "import sys; print(sys.argv)"),
    (["missing.py"], ""),
    (["-c", "raise SystemExit(3)"], ""),
    (["folder"], ""),
    (["-V"], ""),
]


def test_program_with_options_behaves_as_without_emulation(programs):
    lines = "import sys\nprint(sys.argv, __name__, __file__, sys.path[0], sys.orig_argv)\n"
    (programs.folder / "child.py").write_text(lines)
    (programs.folder / "folder").mkdir()
    (programs.folder / "folder" / "__main__.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    source = f"""for option in ("-I", "-E", "-S"):
    for words, given in {FORMS!r}:
        command = [sys.executable, option, *words]
        done = subprocess.run(command, input=given, text=True, capture_output=True)
        print(option, words, done.returncode, done.stdout, done.stderr)
"""
    programs.run(source)
    with_emulation = programs.output
    original = "import _posixsubprocess\nsubprocess._fork_exec = _posixsubprocess.fork_exec.__wrapped__\n"
    programs.run(f"{original}{source}")
    assert with_emulation == programs.output
    assert with_emulation.count("__main__") == 11


@pytest.mark.parametrize(
    "words",
    [
        "python x.py -I", "python -c I", "python -m I", "python -X I x.py", "python -WI x.py", "python -B x.py",
        "python --help", "python -IV", "python -s -P x.py", "ls -I", "python-config -I", "python",
        f"python -I {START} x",
    ],
)  # fmt: skip
def test_other_programs_and_options_are_unchanged(words):
    words = words.split()
    assert with_start(words[0], words) is words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python3.11 -I x.py -c", f"python3.11 -I {START} x.py -c"),
        ("python -BIc code a", f"python -BI {START} -c code a"),
        ("python -I -mname a", f"python -I {START} -m name a"),
        ("python -X dev -Wignore -S -u x.py", f"python -X dev -Wignore -S -u {START} x.py"),
        ("python --check-hash-based-pycs never -E -", f"python --check-hash-based-pycs never -E {START} -"),
        ("python -I", f"python -I {START}"),
    ],
)
def test_options_that_ignore_the_environment_start_with_the_emulation(words, expected):
    words = words.split()
    assert with_start(words[0].encode(), [each.encode() for each in words]) == expected.split()


def test_environment_is_completed_only_if_it_lacks_something():
    own = OwnVariables(
        {"FOREBAY_A": "1", "FOREBAY_REHEARSAL_CHANNEL": "7", "WANDB_MODE": "x", "B": "2"}, "/s", ["WANDB_MODE"]
    )
    complete = {"FOREBAY_A": "9", "WANDB_MODE": "y", "PYTHONPATH": "/a:/s"}
    assert own.complete(complete) is complete
    assert own.complete({}) == {"FOREBAY_A": "1", "WANDB_MODE": "x", "PYTHONPATH": "/s"}
    found = own.complete({b"PYTHONPATH": b"/a", b"FOREBAY_A": b"3"})
    assert found == {b"FOREBAY_A": b"3", "WANDB_MODE": "x", "PYTHONPATH": "/s:/a"}


def test_nonsense_fails_as_without_emulation(programs):
    programs.run("""
        for arguments in ({}, {"env": 3}, {"env": {"A": 1}}, {"env": {"A=B": "1"}}):
            for command in ([], [None], 3, ["python", 4]):
                try:
                    subprocess.Popen(command, **arguments)
                except Exception as error:
                    print(type(error).__name__)
        for name in ("posix_spawn", "execve"):
            try:
                getattr(os, name)(None, 3, 4)
            except TypeError as error:
                print(error)
    """)
    assert programs.status == 0, programs.output
    assert "posix_spawn: " in programs.output
    assert "forebay" not in programs.output


def test_isolated_process_imports_the_forebay_of_its_parent(programs):
    other = programs.folder / "other" / "forebay"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ImportError('another installation')")
    found = programs.run("""
        code = "import sys; sys.path.insert(0, 'other'); raise ValueError(1)"
        subprocess.run([sys.executable, "-I", "-c", code], env={})
    """)
    assert "another installation" not in programs.output
    assert [each.ending.what for each in found.processes[1:]] == ["ValueError: 1"]
