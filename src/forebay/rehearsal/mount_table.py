"""The mounts of this process, and which of them store files of the user."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MEMORY_FILES", "Mount", "is_below", "is_folder", "read_mounts", "visible_mounts"]

# File systems of the kernel, and of services: their files are no files of the user, and programs need the real ones.
_NO_STORAGE = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "hugetlbfs", "mqueue", "nsfs", "proc",
    "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
})  # fmt: skip
_VOLATILE = ("/dev", "/run", "/var/run")  # a tmpfs here has sockets and locks, which processes share
MEMORY_FILES = "/dev/shm"  # noqa: S108 -- users keep data sets in it, beside the shared memory of processes


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: where it is, and what is mounted."""

    number: int
    parent: int
    path: str
    file_system: str
    read_only: bool

    @property
    def is_storage(self) -> bool:
        """True if the program may change files of the user here."""
        if self.file_system in _NO_STORAGE or is_below(self.path, "/proc") or is_below(self.path, "/sys"):
            return False
        in_memory = self.file_system in ("tmpfs", "ramfs") and not is_below(self.path, MEMORY_FILES)
        return not self.read_only and not (in_memory and any(is_below(self.path, each) for each in _VOLATILE))


def is_below(path: str, folder: str) -> bool:
    """Return True if the path is the folder, or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read_mounts(text: str | None = None) -> list[Mount]:
    """Return the mounts of this process in the order of the kernel: that of mounting."""
    if text is None:
        text = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape")
    found = []
    for line in text.splitlines():
        fields, _, source = line.partition(" - ")
        number, parent, _, _, path, options, *_ = fields.split(" ")
        kind, _, of_file_system = source.split(" ", 2)
        flags = {*options.split(","), *of_file_system.rpartition(" ")[2].split(",")}
        found.append(Mount(int(number), int(parent), _unescape(path), kind, "ro" in flags))
    return found


def visible_mounts(mounts: list[Mount]) -> list[Mount]:
    """Return the mounts that a path reaches, parents first: others lie below a later mount."""
    last: dict[str, Mount] = {}
    for each in mounts:
        last[each.path] = each
    by_number = {each.number: each for each in mounts}
    reached = []
    for each in last.values():
        parent = by_number.get(each.parent)
        if each.path == "/" or parent is None or _is_reached(each, parent, last):
            reached.append(each)
    return sorted(reached, key=lambda each: (each.path.count("/") if each.path != "/" else 0, each.path))


def _is_reached(mount: Mount, parent: Mount, last: dict[str, Mount]) -> bool:
    """Return True unless another mount covers a folder between the parent and the mount."""
    folder = os.path.dirname(mount.path)  # noqa: PTH120 -- text of the kernel, which a Path would normalize
    while len(folder) > len(parent.path):
        if folder in last:
            return False
        folder = os.path.dirname(folder)  # noqa: PTH120 -- as above
    return last.get(parent.path) is parent or parent.path == mount.path


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def is_folder(path: str) -> bool:
    """Return True if the path is a folder, and False if it cannot be found out."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 -- as above
    except (OSError, ValueError):
        return False
