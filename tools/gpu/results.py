"""The results of a run on disk: complete at every moment, so that a run that is killed leaves all that it has found."""

from __future__ import annotations

import json
import lzma
import tarfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu.part import RESULT, Outcome, read_outcome, write_file, write_json
from gpu.parts import PARTS, Part, Result
from gpu.run_folder import ARCHIVE, RunFolder

__all__ = ["Earlier", "Results", "read_earlier", "read_file"]

FILE = "results.json"
PACKED_EVERY = 15.0  # seconds
_LARGEST = 64 << 20  # bytes of a file of an earlier run


@dataclass
class Results:
    """Results of a run so far, in its folder."""

    folder: RunFolder
    facts: dict[str, str]  # about the run: its card, its driver, its command, ...
    ended: dict[str, Result] = field(default_factory=dict)
    running: dict[str, Part] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # states of the result files of running parts
    _packed: float = 0.0  # when the archive was written
    _lock: threading.Lock = field(default_factory=threading.Lock)  # parts that run side by side have a thread each

    def begin(self, part: Part) -> None:
        with self._lock:
            self.running[part.name] = part
            self._write()

    def end(self, result: Result) -> None:
        """Write the result of a part, and the archive."""
        with self._lock:
            self.running.pop(result.part.name, None)
            self.ended[result.part.name] = result
            self._write()
            self._pack()

    def pack(self) -> None:
        """Write the archive."""
        with self._lock:
            self._pack()

    def _pack(self) -> None:
        with suppress(OSError):  # a full disk: the files beside the archive are complete
            self.folder.pack()
        self._packed = time.monotonic()

    def refresh(self) -> None:
        """Write again if a running part has saved something since."""
        changed = False
        with self._lock:
            for name in self.running:
                with suppress(OSError):
                    state = (self.folder.of(name) / RESULT).stat()
                    now = (state.st_mtime_ns, state.st_size)
                    if self._seen.get(name) != now:
                        self._seen[name] = now
                        self._write()
                        changed = True
            # A run that is killed in its first part has an archive, too.
            if changed and time.monotonic() - self._packed > PACKED_EVERY:
                self._pack()

    def _write(self) -> None:
        """Write the JSON file and the page. A full disk stops neither the run nor the part that filled it."""
        with suppress(OSError):
            write_json(self.folder.path / FILE, self._as_json())
            write_file(self.folder.path / "results.md", "\n".join(self._page()) + "\n")

    def _as_json(self) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for part in PARTS:
            if part.name in self.ended:
                result = self.ended[part.name]
                parts[part.name] = {**asdict(result.outcome), "seconds": round(result.seconds, 1)}
            elif part.name in self.running:
                outcome = read_outcome(self.folder.of(part.name)) or Outcome("running")
                parts[part.name] = {**asdict(outcome), "status": "running"}
        return {"facts": self.facts, "parts": parts}

    def _page(self) -> list[str]:
        lines = ["# Results on an NVIDIA GPU", "", *(f"* {name}: {value}" for name, value in self.facts.items()), ""]
        lines += ["| part | result | detail | time |", "|---|---|---|---|"]
        parts = self._as_json()["parts"]
        titles = {part.name: part.title for part in PARTS}
        for name, each in parts.items():
            seconds = f"{each['seconds']:.0f} s" if "seconds" in each else ""
            lines.append(f"| {titles[name]} | {each['status']} | {each['detail']} | {seconds} |")
        for name, each in parts.items():
            if each["lines"]:
                lines += ["", f"## {titles[name]}", "", *each["lines"]]
        return lines


@dataclass(frozen=True)
class Earlier:
    """Results of an earlier run."""

    facts: Mapping[str, str]
    parts: Mapping[str, Result]

    def to_repeat(self) -> list[str]:
        """Return the parts that did not reach their end, or failed."""
        done = {name for name, result in self.parts.items() if result.outcome.status in ("ok", "not run")}
        return [part.name for part in PARTS if part.name not in done]


def read_earlier(path: Path) -> Earlier:
    """Read the results of a run from its folder, or from its archive.

    Raises
    ------
    ValueError
        If there are none, or they are not valid.
    """
    try:
        found = json.loads(read_file(path, FILE))
        facts, parts = found["facts"], {}
        for part in PARTS:
            if each := found["parts"].get(part.name):
                lines = [str(line) for line in each["lines"]]
                outcome = Outcome(str(each["status"]), str(each["detail"]), lines)
                parts[part.name] = Result(part, outcome, float(each.get("seconds", 0.0)))
        return Earlier({str(name): str(value) for name, value in facts.items()}, parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{path} has no results of a run: {type(error).__name__}: {error}") from None


def read_file(path: Path, name: str) -> bytes:
    """Return a file of a run's folder, or of the archive that is given or in the folder.

    Raises
    ------
    ValueError, OSError, KeyError, lzma.LZMAError, tarfile.TarError
        If there is none, or it is too large.
    """
    if path.is_dir() and (path / name).is_file():
        return (path / name).read_bytes()
    with tarfile.open(path / ARCHIVE if path.is_dir() else path, "r:xz") as archive:
        member = archive.getmember(name)
        stream = archive.extractfile(member)
        if stream is None or member.size > _LARGEST:
            raise ValueError(f"{name} has {member.size} bytes")
        return stream.read(_LARGEST)
