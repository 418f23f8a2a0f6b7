"""Commands and imports with a missing or damaged compiled core: the error and the remedy that they report."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import forebay
from forebay import _core
from forebay.commands import checks
from forebay.commands.checks import CHECKS

LIMIT = 60  # seconds for a child process
CORE = Path(_core.__file__)
DOCTOR = "; `forebay doctor` reports the remedy"


@dataclass
class Broken:
    """A copy of the package whose core does not load, and the loader's error."""

    home: Path
    error: str

    def python(self, *arguments: str) -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.home), "PYTHONIOENCODING": "utf-8", "COLUMNS": "500"}
        done = subprocess.run(
            [sys.executable, "-P", *arguments], env=environment, cwd=self.home, capture_output=True, encoding="utf-8",
            check=False, timeout=LIMIT,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def command(self, *arguments: str) -> tuple[int, str, str]:
        return self.python("-m", "forebay", *arguments)


def remove(core: Path) -> str:
    core.unlink()
    return "ModuleNotFoundError: No module named 'forebay._core'"


def rename(core: Path) -> str:
    core.rename(core.with_name("_core.cpython-399-nowhere.so"))
    return "ModuleNotFoundError: No module named 'forebay._core'"


def empty(core: Path) -> str:
    core.write_bytes(b"")
    return f"ImportError: {core}: file too short"


def overwrite(core: Path) -> str:
    core.write_bytes(b"this is not a library" * 1000)
    return f"ImportError: {core}: invalid ELF header"


def misname(core: Path) -> str:
    """Corrupt the name of libstdc++ in the library."""
    core.write_bytes(CORE.read_bytes().replace(b"libstdc++.so", b"libnowhe.so?"))
    return "ImportError: libnowhe.so?.6: cannot open shared object file: No such file or directory"


def fail_inside(core: Path) -> str:
    """Replace the core by a module that raises while it is imported."""
    core.with_name("_core.py").write_text("raise SystemError('bad call flags\\nand more')")
    core.unlink()
    return "SystemError: bad call flags"


@pytest.fixture(params=[remove, rename, empty, overwrite, misname, fail_inside])
def broken(request, tmp_path):
    if request.param in (empty, overwrite, misname) and sys.platform != "linux":
        pytest.skip("the error texts are those of the Linux loader")
    return broken_by(request.param, tmp_path)


@pytest.fixture
def missing(tmp_path):
    return broken_by(remove, tmp_path)


def broken_by(damage: Callable[[Path], str], folder: Path) -> Broken:
    package = folder / "forebay"
    shutil.copytree(Path(forebay.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "_core.*.so"))
    shutil.copy(CORE, package)
    return Broken(folder, damage(package / CORE.name))


def test_doctor_reports_error_and_remedy(broken):
    status, out, err = broken.command("doctor")
    assert (status, err) == (1, "")
    core, remedy, more, *others, empty_line, last = out.splitlines()
    assert core == f"✗ native core          {broken.error}"
    assert "install" in remedy
    assert more.strip() == "more: forebay doctor --check 'native core'"
    lines = [line.split("  ")[0] + ": " + line.rpartition("  ")[2] for line in others]
    assert lines == [f"- {check.name}: not run, as it needs the native core" for check in CHECKS[1:]]
    assert (empty_line, last) == ("", f"1 of {len(CHECKS)} checks failed, {len(CHECKS) - 1} not run")


def test_info_reports_versions_and_error(broken):
    status, out, err = broken.command("info")
    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("no cpu")]
    assert broken.error in out
    assert line.startswith("no cpu    the backend for cpu could not be loaded: ")
    assert importlib.metadata.version("numpy") in out
    assert DOCTOR in out


def test_info_json_reports_versions_and_error(missing):
    status, out, err = missing.command("info", "--json")
    info = json.loads(out)
    assert (status, err, info["devices"]) == (0, "", [])
    assert info["missing"]["cpu"] == f"the backend for cpu could not be loaded: {missing.error}{DOCTOR}"
    assert info["versions"]["numpy"] == importlib.metadata.version("numpy")


def test_run_prints_one_line_and_writes_no_report(broken):
    (broken.home / "x.py").write_text("print('it ran')")
    line = f"forebay: error: forebay's compiled core does not load ({broken.error}){DOCTOR}\n"
    assert broken.command("run", "x.py") == (2, "", line)
    assert not (broken.home / "forebay-report").exists()


@pytest.mark.parametrize("arguments", ["--version", "--help", "run --help", "doctor --help"])
def test_version_and_help_work_without_core(missing, arguments):
    status, out, err = missing.command(*arguments.split())
    assert (status, err) == (0, "")
    assert out


PROGRAMS = [
    "import forebay\nforebay.empty(3)",
    "import forebay\nhasattr(forebay, 'Tensor')",
    "from forebay import Tensor",
    "from forebay import memory",
    "from forebay import ForebayError",
    "from forebay import *",
    "from forebay import bfloat16",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_first_use_raises_import_error(missing, program):
    status, out, err = missing.python("-c", program)
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == f"ImportError: forebay's compiled core does not load ({missing.error}){DOCTOR}"


def test_import_error_names_the_cause(broken):
    program = "try:\n    from forebay import Tensor\nexcept ImportError as error:\n    print(error.name, error)"
    expected = f"forebay._core forebay's compiled core does not load ({broken.error}){DOCTOR}\n"
    assert broken.python("-c", program) == (0, expected, "")


def test_missing_names_are_reported_as_usual(missing):
    assert "has no attribute 'emtpy'" in missing.python("-c", "import forebay\nforebay.emtpy")[2]
    assert "cannot import name 'emtpy'" in missing.python("-c", "from forebay import emtpy")[2]


def test_remedy_depends_on_cause_and_installation(missing):
    program = "from forebay.commands.checks import rebuild; print(rebuild('no module'))"
    assert missing.python("-c", program)[1].endswith(" -m pip install --force-reinstall --no-deps forebay\n")
    home = missing.home / "src"
    home.mkdir()
    (missing.home / "forebay").rename(home / "forebay")
    (missing.home / "setup.py").touch()
    sources = Broken(home, "")
    assert sources.python("-c", program)[1].endswith(f" --force-reinstall --no-deps --editable {missing.home}\n")
    for error in (
        "ImportError: libstdc++.so.6: cannot open shared object file: No such file or directory",
        "ImportError: libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by _core.so)",
    ):
        assert checks.rebuild(error).startswith("install the library that the error names")
