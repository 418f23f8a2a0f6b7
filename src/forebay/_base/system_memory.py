"""The memory that this process may use, read from the system and its control groups."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["available_memory", "resident_memory", "usable_memory"]


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its control groups."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(group.limit for group in _groups(root))])


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process could use now without swapping; None if the system does not report it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if found is None:
        return None
    return min([int(found[1]) << 10, *(group.limit - group.used() for group in _groups(root))])


def resident_memory() -> tuple[int, int]:
    """Return the peak and the current bytes of resident memory."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10, 0
    found = {name: int(kib) << 10 for name, kib in re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", text, re.MULTILINE)}
    return found.get("VmHWM", 0), found.get("VmRSS", 0)


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group (cgroup) with a memory limit."""

    folder: Path
    limit: int
    usage: str  # the file with the bytes in use
    cache: str  # the key in memory.stat of bytes that the system can reclaim

    def used(self) -> int:
        text = _text(self.folder / self.usage).strip()
        found = re.search(rf"^{self.cache} (\d+)$", _text(self.folder / "memory.stat"), re.MULTILINE)
        return max(int(text or 0) - (int(found[1]) if found else 0), 0)


def _groups(root: Path) -> Iterator[_Group]:
    """Yield the process's control groups and their ancestors that limit memory."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops, limit = [mounts, mounts / "unified"], "memory.max"
            usage, cache = "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            tops, limit = [mounts / "memory"], "memory.limit_in_bytes"
            usage, cache = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for top in tops:
            group = top / path.lstrip("/")
            # In a container its own group is the top, while `path` may start at the machine's.
            for folder in (group, *group.parents):
                if folder.is_relative_to(top) and (text := _text(folder / limit).strip()).isdecimal():
                    yield _Group(folder, int(text), usage, cache)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
