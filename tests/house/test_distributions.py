"""Contents of the distributions. `dev.py dist` builds them, and uses them in empty environments."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile

import pytest


@pytest.fixture
def distributions(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    yield pytest.importorskip("distributions")
    for name in ("distributions", "steps"):
        sys.modules.pop(name, None)


def test_sdist_has_every_file_of_the_repository(distributions, root, monkeypatch):
    """It does so by the rules of MANIFEST.in, without building the sdist."""
    from setuptools.command.egg_info import FileList

    if not distributions.tracked_files():
        pytest.skip("not a git checkout")
    monkeypatch.chdir(root)
    included = FileList()
    for line in (root / "MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            included.process_template_line(line)
    included.files.append("pyproject.toml")  # by setuptools' own rules
    assert distributions.sdist_problems(set(included.files)) == []


SOURCES = {
    "PKG-INFO": "",
    "native/pool.cpp": "",
    "src/forebay/__init__.py": "",
    "src/forebay/_core.pyx": "",
    "src/forebay/_core.pyi": "",
    "src/forebay/page.html": "",
    "src/forebay.egg-info/PKG-INFO": "",
    "src/forebay_command.py": "",
}
WHEEL = {
    "forebay/__init__.py",
    "forebay/_core.cpython-311-x86_64-linux-gnu.so",
    "forebay/_core.pyi",
    "forebay/page.html",
    "forebay_command.py",
    "forebay-1.0.dist-info/RECORD",
}


@pytest.mark.parametrize(
    ("names", "problems"),
    [
        (WHEEL, []),
        (WHEEL - {"forebay/page.html"}, ["the wheel lacks forebay/page.html"]),
        (WHEEL | {"forebay/_core.cpp"}, ["the wheel also has forebay/_core.cpp"]),
        (
            {name.replace(".cpython", "2.cpython") for name in WHEEL},
            ["the wheel lacks the compiled forebay/_core", "the wheel also has the compiled forebay/_core2"],
        ),
    ],
)
def test_wheel_has_exactly_what_programs_import(distributions, tmp_path, names, problems):
    with tarfile.open(tmp_path / "forebay.tar.gz", "w:gz") as archive:
        for name, text in SOURCES.items():
            entry = tarfile.TarInfo(f"forebay-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with zipfile.ZipFile(tmp_path / "forebay.whl", "w") as archive:
        for name in names:
            archive.writestr(name, "")
    assert distributions.wheel_problems(tmp_path / "forebay.whl", tmp_path / "forebay.tar.gz") == problems


def test_lost_and_added_files_of_an_sdist_are_found(distributions, monkeypatch):
    monkeypatch.setattr(distributions, "tracked_files", lambda: {"dev.py", "README.md"})
    files = {"dev.py", "PKG-INFO", "setup.cfg", "src/forebay.egg-info/SOURCES.txt", "notes.txt"}
    assert distributions.sdist_problems(files) == ["the sdist lacks README.md", "the sdist also has notes.txt"]


def test_installation_on_windows_ends_with_one_sentence(root):
    """Only the name of the platform is Windows' here: setup.py tests it before anything else."""
    program = "import runpy, sys; sys.platform = 'win32'; runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    sentence = "forebay runs on Linux and macOS: on Windows, install it in the Windows Subsystem for Linux (WSL 2)\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
