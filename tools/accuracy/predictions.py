"""Predictions of `forebay fit`: one process for each command, kept in a file that a later run continues."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from accuracy.measurements import Measurement

__all__ = ["Prediction", "Run", "key_of", "predict", "read_predictions", "runs_of"]

ENOUGH = "512GiB"  # memory with which no program runs out
LIMIT = 600  # seconds for one program
NEAR = 0.9  # share of a card's memory above which the card's own limit is rehearsed, too


class Run(NamedTuple):
    """The arguments of `fit`: a card, its memory, and the program."""

    card: str
    memory: str
    command: tuple[str, ...]


class Prediction(NamedTuple):
    """The answer of `fit`.

    Parameters
    ----------
    verdict, message : str
        The verdict, and what went wrong.
    allocated, reserved : int
        Peaks in bytes.
    workspaces, in_use : tuple of int
        The least, the usual and the most bytes of cuDNN's workspaces, and of all that nvidia-smi shows.
    seconds : float
        The time of the run.
    """

    verdict: str
    message: str
    allocated: int
    reserved: int
    workspaces: tuple[int, int, int]
    in_use: tuple[int, int, int]
    seconds: float


def key_of(run: Run) -> str:
    """Return the name of a run in the file: without the folder of its program."""
    program, *arguments = run.command
    return " ".join([run.card, run.memory, Path(program).name, *arguments])


def runs_of(row: Measurement, known: dict[str, Prediction]) -> list[Run]:
    """Return the runs of a row: with enough memory, then with the card's own where it decides the verdict."""
    runs = [Run(row.card, ENOUGH, command) for command in row.commands.values()]
    if len(runs) == 1 and key_of(runs[0]) in known and known[key_of(runs[0])].in_use[2] > NEAR * row.capacity:
        runs.append(runs[0]._replace(memory=str(row.capacity)))
    return runs


def fit(run: Run) -> Prediction:
    """Rehearse a program."""
    options = ["--json", "--cards", run.card, "--memory", run.memory]
    command = [sys.executable, "-m", "forebay", "fit", *options, *run.command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        (found,) = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return failed(f"it took more than {LIMIT} s")
    except ValueError:
        return failed(done.stderr.strip()[-300:])
    return Prediction(
        found["verdict"], found["message"], found["peak_allocated"], found["peak_reserved"],
        triple(found["workspaces"]), triple(found["in_use"]), round(found["seconds"], 1),
    )  # fmt: skip


def failed(message: str) -> Prediction:
    """Return the prediction of a run without an answer."""
    return Prediction("no answer", message, 0, 0, (0, 0, 0), (0, 0, 0), 0.0)


def triple(found: dict[str, int] | None) -> tuple[int, int, int]:
    """Return the ends and the value of a range."""
    return (found["low"], found["value"], found["high"]) if found else (0, 0, 0)


def read_predictions(path: Path) -> dict[str, Prediction]:
    """Return the predictions in a file, none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for line in lines:
        values = json.loads(line)
        name = values.pop("run")
        values["workspaces"], values["in_use"] = tuple(values["workspaces"]), tuple(values["in_use"])
        found[name] = Prediction(**values)
    return found


def predict(
    rows: Iterable[Measurement], path: Path, jobs: int, is_late: Callable[[], bool], said: Callable[[str], None]
) -> dict[str, Prediction]:
    """Run what is absent in a file, several at a time, and return all predictions. Each is written when it is there."""
    known, lock = read_predictions(path), threading.Lock()

    def work(row: Measurement) -> None:
        while absent := [run for run in runs_of(row, known) if key_of(run) not in known]:
            if is_late():
                return
            found = fit(absent[0])
            with lock, path.open("a", encoding="utf-8") as file:
                known[key_of(absent[0])] = found
                file.write(json.dumps({"run": key_of(absent[0]), **found._asdict()}) + "\n")
            said(f"{key_of(absent[0])}: {found.verdict} {found.message} {found.reserved / (1 << 20):,.0f} MiB")

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(work, row) for row in once_each(rows)]):
            done.result()
    return known


def once_each(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return the first row of each set of commands, so that two threads never run the same."""
    return list({(row.card, *row.commands.values()): row for row in rows}.values())
