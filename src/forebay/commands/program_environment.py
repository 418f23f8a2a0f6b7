"""The environment of a program, where `forebay` is installed in one of its own: `uvx forebay fit train.py`.

# Note [Environments of programs]
`uvx`, `uv tool` and `pipx` install forebay into an environment of its own, and the program's PyTorch is in another one.
The command then runs again with the interpreter of that one, so that the program finds what it always finds: its
packages, editable installations, `torchrun` beside its interpreter. forebay, and those of its requirements that are
missing there, are links in a folder on PYTHONPATH. Its compiled modules need an interpreter with the same ABI, and
there the packages of the program come first where both have them, as NumPy. Rejected: the program's site-packages on
the path of forebay's interpreter, which executes no .pth file there and would import forebay's NumPy.
Test: tests/commands/test_program_environment.py::test_command_runs_with_the_packages_of_the_programs_environment
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from forebay._base.temporary_folders import temporary_folder
from forebay.commands import CommandError
from forebay.commands.programs import is_isolated

__all__ = ["Environment", "continue_there", "need_torch"]

_NUMPY = (2, 1, 1)  # as pyproject.toml; NumPy is the only requirement with compiled modules
_SECONDS = 60  # an interpreter on a network file system starts slowly
_FACTS = """
import json, sys, sysconfig
from importlib.util import find_spec
def version(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:
        return ""
def has(name):
    try:
        return find_spec(name) is not None
    except Exception:
        return True
print(json.dumps({
    "abi": sysconfig.get_config_var("SOABI") or "", "python": list(sys.version_info[:3]), "prefix": sys.prefix,
    "numpy": version("numpy") if has("numpy") else "", "present": [each for each in sys.argv[1:] if has(each)],
}))
"""


@dataclass(frozen=True)
class Environment:
    """An environment of Python in which a program may run."""

    python: Path  # its interpreter
    abi: str
    version: tuple[int, ...]
    prefix: str
    numpy: str  # the version; "" if it is missing
    present: tuple[str, ...]  # modules, of those that were asked for

    @property
    def why_not(self) -> str:
        """The reason why forebay cannot be used there as it is, and what to do; "" if it can."""
        own = sysconfig.get_config_var("SOABI")
        if self.version < (3, 11):
            return f"{self.prefix} has Python {_dotted(self.version)}: forebay needs 3.11 or later"
        if self.abi != own:
            return (
                f"{self.prefix} has Python {_dotted(self.version)} ({self.abi}), and forebay is installed for {own}. "
                f"This command works: {_own_command(self)}"
            )
        if self.numpy and _numbers(self.numpy) < _NUMPY:
            return (
                f"{self.prefix} has NumPy {self.numpy}: forebay needs {_dotted(_NUMPY)} or later. "
                f"Update it: {_pip(self)} 'numpy>={_dotted(_NUMPY)}'"
            )
        return ""


def continue_there(arguments: Sequence[str]) -> int | None:
    """Run the command in the program's environment if forebay has one of its own; None if it is to run here.

    Raises CommandError if the environment that was found cannot be used.
    """
    if not is_isolated():
        return None
    found = next(_environments(), None)
    return None if found is None else _run_there(found, arguments)


def need_torch(arguments: Sequence[str]) -> int | None:
    """Run a command that needs PyTorch in the program's environment if this one has none; None if it is to run here.

    Raises CommandError if no environment with PyTorch can be used.
    """
    if find_spec("torch") is not None:
        return None
    environments = [*_environments()]
    found = next((each for each in environments if "torch" in each.present), None)
    if found is None:
        raise CommandError(_without_torch(environments, arguments))
    return _run_there(found, arguments)


def _without_torch(environments: Sequence[Environment], arguments: Sequence[str]) -> str:
    looked = [f"{each.prefix}, which has none either" for each in environments]
    if not os.environ.get("VIRTUAL_ENV"):
        looked.append("VIRTUAL_ENV, which is not set")
    if not any(Path(each.prefix).name == ".venv" for each in environments):
        looked.append(f".venv in {Path.cwd()} and above, where there is none")
    command = shlex.join(["python", "-m", "forebay", *arguments])
    return (
        f"PyTorch is not installed for {sys.executable}. Looked in {'; '.join(looked)}. Activate the environment in "
        f"which your program runs, or install forebay there: python -m pip install forebay, and {command}. Its build "
        "for the CPU is enough"
    )


def _environments() -> Iterator[Environment]:
    """Return other environments in which the program may run: the active one, that of the project, Python on PATH."""
    seen = {os.path.realpath(sys.prefix)}
    for python in _interpreters():
        prefix = os.path.realpath(python.parent.parent)
        if prefix not in seen and (found := _facts(python)) is not None:
            seen |= {prefix, os.path.realpath(found.prefix)}
            yield found


def _interpreters() -> Iterator[Path]:
    folders = [Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    here = Path.cwd()
    folders += [each / ".venv" for each in (here, *here.parents)]
    yield from (python for each in folders if (python := each / "bin/python").exists())
    own = os.path.realpath(Path(sys.executable).parent)
    others = [each for each in os.get_exec_path() if each and os.path.realpath(each) != own]
    if (found := shutil.which("python", path=os.pathsep.join(others))) is not None:
        yield Path(found)


def _facts(python: Path) -> Environment | None:
    """Ask an interpreter about its environment; None if it does not start."""
    command = [str(python), "-I", "-c", _FACTS, "torch", "pip", *_requirements()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    present = tuple(said["present"])
    return Environment(python, said["abi"], tuple(said["python"]), said["prefix"], said["numpy"], present)


def _requirements() -> dict[str, Path]:
    """Return the modules that forebay needs, with their places."""
    found: dict[str, Path] = {}
    left, seen = ["numpy", "rich"], set[str]()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        with suppress(metadata.PackageNotFoundError):
            package = metadata.distribution(name)
            left += [re.split(r"[^A-Za-z0-9._-]", each)[0] for each in package.requires or () if "extra ==" not in each]
            for file in package.files or ():
                top = file.parts[0]
                if top.partition(".")[0].isidentifier() and not top.endswith((".dist-info", ".pth", "__pycache__")):
                    found[top.removesuffix(".py")] = Path(str(package.locate_file(top)))
    return found


def _run_there(found: Environment, arguments: Sequence[str]) -> int:
    """Run the command with another interpreter, and return its status."""
    if found.why_not:
        raise CommandError(found.why_not)
    print(f"forebay: using the environment of the program, {found.prefix}", file=sys.stderr, flush=True)
    with temporary_folder("forebay-environment-") as folder:
        _link(folder, found)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH")]))
        folders = [str(found.python.parent), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(folders)
        if Path(found.prefix, "pyvenv.cfg").exists():
            environment["VIRTUAL_ENV"] = found.prefix
        return _wait([str(found.python), "-m", "forebay", *arguments], environment)


def _link(folder: Path, found: Environment) -> None:
    """Make links to forebay, and to what it needs and the environment lacks."""
    own = Path(__file__).resolve().parent.parent
    wanted = {own.name: own} | {each.name: each for each in own.parent.glob("forebay_*.py")}
    with suppress(metadata.PackageNotFoundError):
        package = metadata.distribution("forebay")
        tops = {file.parts[0] for file in package.files or () if file.parts[0].endswith(".dist-info")}
        wanted |= {each: Path(str(package.locate_file(each))) for each in tops}
    for module, place in _requirements().items():
        if module not in found.present:
            wanted[place.name] = place
    for name, place in wanted.items():
        if place.exists():
            (folder / name).symlink_to(place)


def _wait(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command that gets the signals for this process, and return its status as a shell would."""
    process = subprocess.Popen(command, env=environment)

    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - status if status < 0 else status


def _own_command(found: Environment) -> str:
    """Return the command line that runs forebay with the interpreter of an environment."""
    words = [*sys.argv[1:]]
    if re.match(r"archive-v\d+$", Path(sys.prefix).parent.name):
        return shlex.join(["uvx", "--python", str(found.python), *_source(), "forebay", *words])
    return f"{_pip(found)} forebay && {shlex.join([str(found.python), '-m', 'forebay', *words])}"


def _source() -> list[str]:
    """Return the option that names the file or folder that forebay was installed from; nothing for a package index."""
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError):
        text = metadata.distribution("forebay").read_text("direct_url.json")
        if text and (url := urlparse(json.loads(text)["url"])).scheme == "file":
            return ["--from", unquote(url.path)]
    return []


def _pip(found: Environment) -> str:
    """Return the command that installs packages into an environment, with or without pip."""
    python = shlex.quote(str(found.python))
    return f"{python} -m pip install" if "pip" in found.present else f"uv pip install --python {python}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
