"""Public programs, run unedited: python3 dev.py packages --public FOLDER [NAME ...]

FOLDER is a cache outside this repository: FOLDER/OWNER/NAME, or FOLDER/OWNER+NAME/repo, is a git repository with the
commit that public_programs.toml names. Each program runs over synthetic data of the right shape as `forebay fit` runs
it, with values and without. Both must finish; the peaks must be equal, or the one with assumed values not smaller.
A program without its repository or without a package that it needs is not run, and reported as that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from packages.results import Result, difference
from packages.synthetic_data import maker

__all__ = ["Answer", "PublicProgram", "compare_public", "public_programs", "why_not"]

CARD = "rtx_4090"
FINISHED = {"fits", "tight", "does not fit"}
LIMIT = 1800  # seconds for one run, on a machine that others use, too
PROCESSOR_LIMIT = 90  # seconds of processor time for one run


class PublicProgram(NamedTuple):
    """A program of a public repository.

    Parameters
    ----------
    name : str
        Its name.
    repository : str
        OWNER/NAME.
    commit : str
        The commit, 40 hexadecimal digits.
    paths : list of str
        The files and folders of the repository that it needs.
    folder : str
        The folder in which it starts.
    arguments : list of str
        The script and its arguments.
    data : dict of str to str, optional
        By path, relative to `folder`: the kind of synthetic data.
    before : list of list of str, optional
        Programs that run first, on the CPU, such as those that prepare data.
    needs : list of str, optional
        Packages that it imports.
    environment : dict of str to str, optional
        Variables that it needs.
    misses : str, optional
        Why it does not finish, or why its peaks differ; "" if it is expected to pass.
    """

    name: str
    repository: str
    commit: str
    paths: list[str]
    folder: str
    arguments: list[str]
    data: dict[str, str] = {}  # noqa: RUF012 -- never changed
    before: list[list[str]] = []  # noqa: RUF012 -- as above
    needs: list[str] = []  # noqa: RUF012 -- as above
    environment: dict[str, str] = {}  # noqa: RUF012 -- as above
    misses: str = ""


class Answer(NamedTuple):
    """The answer of `fit`: the verdict, the peak of allocated bytes, the number of assumed lines and the error."""

    verdict: str
    peak: int
    assumed: int
    error: str


def public_programs() -> list[PublicProgram]:
    """Return the programs of public_programs.toml."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [
        PublicProgram(repository=repository, commit=entry["commit"], **{"paths": [each["folder"]], **each})
        for repository, entry in table.items()
        for each in entry["programs"]
    ]


def why_not(program: PublicProgram, cache: Path) -> str:
    """Return why a program cannot run here, "" if it can."""
    if _repository(program, cache) is None:
        return f"{program.repository} is not in the cache"
    absent = [each for each in program.needs if importlib.util.find_spec(each) is None]
    return f"it needs {', '.join(absent)}" if absent else ""


def compare_public(program: PublicProgram, cache: Path) -> Result:
    """Run a program, which can run here, in both modes, each in a folder of its own."""
    started = _processor_time()
    with_values = _prepare_and_fit(program, cache, "--compute")
    without = _prepare_and_fit(program, cache, "--shapes-only")
    problems = ["" if each.verdict in FINISHED else f"{each.verdict}: {each.error}" for each in (with_values, without)]
    if not any(problems):
        problems[1] = difference(with_values.peak, without.peak, assumed=bool(without.assumed))
    return Result(
        name=program.name,
        source=program.repository,
        commit=program.commit,
        with_values=problems[0],
        without_values=problems[1],
        peaks=(with_values.peak, without.peak),
        assumed=without.assumed,
        seconds=_processor_time() - started,
    )


def _repository(program: PublicProgram, cache: Path) -> Path | None:
    places = (cache / program.repository, cache / program.repository.replace("/", "+") / "repo")
    return next((each for each in places if each.is_dir()), None)


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _prepare_and_fit(program: PublicProgram, cache: Path, mode: str) -> Answer:
    repository = _repository(program, cache)
    if repository is None:
        raise FileNotFoundError(why_not(program, cache))
    with tempfile.TemporaryDirectory() as made:
        _check_out(repository, program, Path(made))
        start = Path(made) / program.folder
        for path, function in program.data.items():
            (start / path).parent.mkdir(parents=True, exist_ok=True)
            maker(function)(start / path)
        for command in program.before:
            subprocess.run([sys.executable, *command], cwd=start, check=True, timeout=LIMIT, capture_output=True)
        began = _processor_time()
        answer = _fit(program, start, mode)
        answer = answer._replace(error=_without_folders(answer.error.replace(f"{Path(made).resolve()}/", "")))
    if (took := _processor_time() - began) > PROCESSOR_LIMIT:
        return answer._replace(verdict="did not finish", error=f"it took {took:.0f} s of processor time")
    return answer


def _check_out(repository: Path, program: PublicProgram, tree: Path) -> None:
    """Write the program's files. A file that the cache lacks, such as a large one of data, is left out."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "ls-tree", "-rz", "--name-only", program.commit, *program.paths], capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        content = subprocess.run([*git, "show", f"{program.commit}:{name}"], capture_output=True, check=False)
        if content.returncode == 0:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content.stdout)


def _fit(program: PublicProgram, start: Path, mode: str) -> Answer:
    command = [sys.executable, "-m", "forebay", "fit", "--json", "--cards", CARD, mode, *program.arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **program.environment}
    paths = program.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        done = subprocess.run(
            command, cwd=start, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False
        )
        (row,) = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Answer("did not finish", 0, 0, f"it took more than {LIMIT} s")
    except (ValueError, KeyError):
        return Answer("no answer", 0, 0, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return _answer_of(row)


def _answer_of(row: dict[str, Any]) -> Answer:
    return Answer(
        row["verdict"],
        row["peak_allocated"] or 0,
        len(row["assumptions"]),
        f"{row['text']} {row['line']} {row['message']}".removeprefix(row["verdict"]).lstrip(": "),
    )


def _without_folders(text: str) -> str:
    """Return a text with the files of packages below the folder that has them, wherever it is on this machine."""
    return re.sub(r"/[^\s:]*/site-packages/", "", text)
