"""Records for the tests from the results of a run on a GPU: python3 dev.py gpu --keep FOLDER.

FOLDER is the output of a run, or its archive. The measured parts become tests/data/gpu-truth/CARD-torch-VERSION.json,
which is merged with a record that exists: of each workload and each call, the newer one stays. Equal results give equal
bytes. tests/data/gpu-truth/README.md describes the fields.

The results come from another machine, so nothing in them is trusted: their size is limited before they are read, no
path in them is used, and a value of another type than expected is an error.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from steps import ROOT

from gpu.part import write_file
from gpu.workloads.sequences import decoded

__all__ = ["RECORDS", "NotKept", "keep"]

RECORDS = ROOT / "tests/data/gpu-truth"

_ARCHIVE = "results.tar.xz"
_FILES = {name: f"work/parts/{name}/{name}.json" for name in ("truth", "workspaces")}  # by part, in an output
_MOST_BYTES = 64 << 20  # of a file
_MOST_UNPACKED = 1 << 30  # of the archive, up to the last file that is read
_MOST_TEXT = 2000  # characters
_MOST_DEPTH = 12
_LARGEST = 1 << 50  # bytes; no card has as much, and all sums of sizes are exact

_NAME = re.compile(r"[a-z0-9_]{1,60}")
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?(?:a|b|rc|\.dev)?\d*)(?:\+[\w.]+)?")

_SIZES = ("allocated", "peak_allocated", "reserved", "peak_reserved")
_Document = dict[str, Any]


class NotKept(Exception):
    """The results cannot be kept; the text is the reason, in one line."""


def keep(path: Path) -> list[Path]:
    """Make or extend the record of the card on which a run has measured, and return the files written.

    Parameters
    ----------
    path : Path
        The output folder of a run, or its archive.

    Raises
    ------
    NotKept
        If there are no results, they are a rehearsal's, or they are malformed.
    """
    found = _results(path)
    if "truth" not in found:
        raise NotKept(f"{path} has no {_FILES['truth']}: the part truth, which describes the card, did not run")
    truth = found["truth"]
    try:
        new = _record(truth, found.get("workspaces"))
        name = f"{_slug(new['card']['name'])}-torch-{_public_version(new['versions']['torch'])}.json"
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NotKept(f"{path}: the results are malformed ({type(error).__name__}: {_line(str(error))})") from None
    file = RECORDS / name
    text = _text(_merged(_existing(file), new))
    RECORDS.mkdir(parents=True, exist_ok=True)
    write_file(file, text)
    return [file]


def _results(path: Path) -> dict[str, _Document]:
    """Return the results of the parts that are there."""
    if path.is_dir():
        files = {part: path / name for part, name in _FILES.items()}
        if there := {part: file for part, file in files.items() if file.is_file()}:
            return {part: _parsed(str(file), _bytes_of(file)) for part, file in there.items()}
        path /= _ARCHIVE
    if not path.is_file():
        raise NotKept(f"there is no output of a run at {path}")
    return _unpacked(path)


def _bytes_of(file: Path) -> bytes:
    size = file.stat().st_size
    if size > _MOST_BYTES:
        raise NotKept(f"{file} has {size:,} bytes; the limit is {_MOST_BYTES:,}")
    return file.read_bytes()


def _unpacked(path: Path) -> dict[str, _Document]:
    """Return the results in an archive. Nothing is written, and only members of the expected names are read."""
    found: dict[str, _Document] = {}
    unpacked = 0
    try:
        with tarfile.open(path, "r|xz") as archive:  # a stream: what a small file unpacks to is counted first
            for member in archive:
                unpacked += member.size
                if unpacked > _MOST_UNPACKED:
                    raise NotKept(f"{path} unpacks to more than {_MOST_UNPACKED:,} bytes")
                parts = [part for part, name in _FILES.items() if _is_named(member.name, name)]
                if not parts or not member.isreg():
                    continue
                if member.size > _MOST_BYTES:
                    raise NotKept(f"{_line(member.name)} in {path} has {member.size:,} bytes; limit: {_MOST_BYTES:,}")
                content = archive.extractfile(member)
                found[parts[0]] = _parsed(f"{_FILES[parts[0]]} in {path}", content.read() if content else b"")
                if len(found) == len(_FILES):
                    break
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise NotKept(f"{path} is not an archive of results ({_line(str(error))})") from None
    return found


def _is_named(member: str, name: str) -> bool:
    """Return whether a member has a name, with or without the output folder before it."""
    return member == name or member.endswith(f"/{name}")


def _parsed(name: str, content: bytes) -> _Document:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number")

    try:
        found = json.loads(content, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise NotKept(f"{name} is not JSON ({_line(str(error))})") from None
    if not isinstance(found, dict):
        raise NotKept(f"{name} is no JSON object")
    return found


def _record(truth: _Document, workspaces: _Document | None) -> _Document:
    """Return the record of one run."""
    if truth["rehearsal"] is not False or not truth["card"]:
        raise NotKept("these are the results of a rehearsal, which has no card: there is nothing to keep")
    if truth["format"] != 1:
        raise NotKept(f"the results have format {_line(str(truth['format']))}; this version knows format 1")
    when = _time(truth["when"])
    card, versions = _plain(truth["card"]), _plain(truth["versions"])
    run = {"driver": _line(str(card.pop("driver", ""))), "versions": versions, "when": when}
    workloads = {
        name: {"when": when, **_workload(row)}
        for name, row in _fields(truth["workloads"], _NAME).items()
        if row["status"] == "ok"
    }
    calls: _Document = {}
    if workspaces is not None:
        machine = _plain(workspaces["machine"])
        if (machine.get("name"), machine.get("torch")) != (card["name"], versions["torch"]):
            raise NotKept(f"the parts ran on {machine.get('name')} and {card['name']}, or with two versions of PyTorch")
        run["machine"] = machine
        for row in workspaces["calls"]:
            if "error" not in row:
                calls[_string(row["name"])] = {"when": when, **_plain(row)}
    if not workloads and not calls:
        raise NotKept("no workload and no call succeeded: there is nothing to keep")
    card.pop("other_processes", None)  # of the moment, not of the card
    return {"card": card, **run, "outside": _plain(truth.get("outside", [])), "workloads": workloads, "calls": calls}


def _workload(row: _Document) -> _Document:
    """Return the measurements of a workload, checked."""
    kept: _Document = {key: _size(row[key]) for key in ("peak_allocated", "peak_reserved", "steps")}
    if row.get("outside") is not None:
        kept["outside"] = int(row["outside"])
    kept["losses"] = [_number(each) for each in row["losses"]]
    kept["phases"] = [_phase(each) for each in row["phases"]]
    if len(kept["phases"]) != kept["steps"] + 1:
        raise ValueError(f"{len(kept['phases'])} phases of {kept['steps']} steps")
    names = {each["name"] for each in kept["phases"] if "sizes" in each}
    for phase in kept["phases"]:
        if "sizes" not in phase and phase["sizes_of"] not in names:
            raise ValueError(f"there is no phase {phase['sizes_of']!r}")
    return kept


def _phase(phase: _Document) -> _Document:
    kept: _Document = {"name": _string(phase["name"]), **{key: _size(phase[key]) for key in (*_SIZES, "retries")}}
    segments = phase["segments"]
    decoded(segments)  # raises ValueError if it is no sequence
    kept["segments"], kept["count"] = segments, _size(phase["count"])
    if "sizes_of" in phase:
        kept["sizes_of"] = _string(phase["sizes_of"])
    elif len(decoded(phase["sizes"])) == kept["count"]:
        kept["sizes"] = phase["sizes"]
    else:
        raise ValueError(f"{len(decoded(phase['sizes']))} sizes of {kept['count']} allocations")
    return kept


def _fields(value: Mapping[str, Any], name: re.Pattern[str]) -> dict[str, Any]:
    """Return an object whose keys are names."""
    for key in value:
        if not name.fullmatch(key):
            raise ValueError(f"{_line(key)!r} is not a name")
    return dict(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value of JSON with limits to its depth, its texts and its numbers."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"the results are nested more than {_MOST_DEPTH} deep")
    if isinstance(value, dict):
        return {_string(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, str):
        return _string(value)
    return value if value is None or isinstance(value, bool) else _number(value)


def _string(value: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError(f"{_line(str(value)[:40])!r} is no text of up to {_MOST_TEXT} characters")
    return value


def _number(value: Any) -> int | float:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > _LARGEST:
        raise ValueError(f"{_line(str(value))!r} is not a number in range")
    number: int | float = value
    return number


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{_line(str(value))!r} is not a size")
    return value


def _time(value: Any) -> str:
    """Return a moment in UTC, so that texts are in the order of time."""
    return dt.datetime.fromisoformat(_string(value)).astimezone(dt.UTC).isoformat(timespec="seconds")


def _slug(name: str) -> str:
    """Return the part of a file's name that says which card it is: of "NVIDIA H100 80GB HBM3", h100-80gb-hbm3."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")[:60].strip("-")
    if not slug:
        raise NotKept(f"{_line(name)!r} is not the name of a card")
    return slug


def _public_version(version: str) -> str:
    """Return a version without its build: of 2.11.0+cu130, 2.11.0."""
    if (found := _VERSION.fullmatch(version)) is None:
        raise NotKept(f"{_line(version)!r} is not a version of PyTorch")
    return found[1]


def _existing(file: Path) -> _Document | None:
    with suppress(FileNotFoundError):
        return _parsed(str(file), _bytes_of(file))
    return None


def _merged(old: _Document | None, new: _Document) -> _Document:
    """Return the newer of each entry; what is not an entry comes from the newer run."""
    if old is None:
        return new
    first, last = sorted((old, new), key=lambda each: str(each["when"]))  # the argument last, if both are of one time
    newest: Callable[[str], _Document] = lambda key: {**first[key], **last[key]}  # noqa: E731 -- used twice, below
    return {**last, "workloads": newest("workloads"), "calls": newest("calls")}


def _text(record: _Document) -> str:
    """Return the record as JSON with a line for each entry, so that versions can be compared."""
    parts = []
    for key, value in sorted(record.items()):
        if key in ("workloads", "calls"):
            lines = [f"{json.dumps(name)}: {_compact(entry)}" for name, entry in sorted(value.items())]
            body = "{" + "".join(f"\n  {line}," for line in lines).removesuffix(",") + "\n }"
        elif key == "outside":
            body = "[" + "".join(f"\n  {_compact(step)}," for step in value).removesuffix(",") + "\n ]"
        else:
            body = _compact(value)
        parts.append(f' "{key}": {body}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _line(text: str) -> str:
    """Return a text that comes from the results as one short line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:200]
