"""Which folders of the user get an overlay in a mount namespace, and which mounts stay as they are."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import Unsupported
from forebay.rehearsal.mount_table import MEMORY_FILES, Mount, is_below, is_folder, read_mounts, visible_mounts

__all__ = ["MountPlan", "is_semaphore", "make_plan", "may_mount", "sockets", "working_folders"]

_MOST_FOLDERS = 2_000  # overlays of an ordinary user; each is a mount
_MOST_SEARCHED = 20_000  # entries of a folder that are searched for files of others
_SHARED = ("/dev", "/proc", "/sys", "/run", "/var/run")  # of processes, not files of a user
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr")  # large, and of root
_SEMAPHORES = f"{MEMORY_FILES}/sem."  # beginning of the paths of POSIX semaphores
_MOST_ENTRIES = 1_000  # of a folder of temporary files, which are searched for sockets


@dataclass(frozen=True, slots=True)
class MountPlan:
    """The steps to the private tree of folders, which `namespace_entry` takes in this order."""

    privileged: bool  # true if the process may mount, and needs no user namespace
    # The kind and the path of each: "overlay", "bind" (as it is), "seal" (as it is, but read-only) and, first, "tree"
    # (the whole tree as it is).
    steps: tuple[tuple[str, str], ...]

    @property
    def overlays(self) -> tuple[str, ...]:
        return tuple(path for kind, path in self.steps if kind == "overlay")

    @property
    def sealed(self) -> tuple[str, ...]:
        return tuple(path for kind, path in self.steps if kind == "seal")


def make_plan(real: Iterable[str], *, privileged: bool | None = None, mounts: list[Mount] | None = None) -> MountPlan:
    """Return the plan for this process. Raises Unsupported if folders that the user may change would stay real.

    Folders in `real`, such as that of the report, shall. By default, `privileged` (whether this process may mount) is
    found out, and `mounts` are those of this process.
    """
    privileged = may_mount() if privileged is None else privileged
    found = visible_mounts(read_mounts() if mounts is None else mounts)
    steps = list(dict.fromkeys(_privileged_steps(found) if privileged else _user_steps(found)))
    steps += [("bind", each) for each in [*sockets(), *real]]
    return MountPlan(privileged, tuple(steps))


def may_mount() -> bool:
    """Return True if this process has the capability CAP_SYS_ADMIN."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 21 & 1)
    return False


def _privileged_steps(mounts: list[Mount]) -> Iterator[tuple[str, str]]:
    for each in mounts:
        if not each.is_storage:
            yield ("overlay" if each.path == "/" else "bind"), each.path
        else:
            yield ("overlay" if is_folder(each.path) else "seal"), each.path


def _user_steps(mounts: list[Mount]) -> Iterator[tuple[str, str]]:
    # Note [Locked mounts]
    # In a user namespace, the mounts of the namespace above are locked: the kernel refuses an overlay over a folder
    # with such a mount inside, as it would show what is below the mount. Therefore each folder without a mount inside
    # gets an overlay of its own, and the folders on the way to a mount stay as they are. If the user may create files
    # in one of these, nothing protects it.
    # Test: tests/rehearsal/test_mount_plan.py::test_folder_with_a_mount_that_the_user_may_write_is_refused

    # Note [Owners in a user namespace]
    # Only this user and this group exist there. An overlay cannot copy what belongs to others, nor a file in a folder
    # that does: the program would get EOVERFLOW. So the folders in which the program works get overlays that begin
    # below the last folder of another owner, and are searched for files of others that this user may write. Elsewhere,
    # each folder of others that this user may write, such as /var/tmp or that of a team, gets an overlay of its own if
    # the search finds it, and Python's functions make copies of files of others in it (`foreign_files`).
    # Test: tests/rehearsal/test_launch.py::test_files_of_another_group_need_python_functions

    yield "tree", "/"
    points = [each.path for each in mounts if each.path != "/"]
    count, roots = 0, list[str]()
    for each in mounts:
        if each.is_storage and not is_folder(each.path):
            yield "seal", each.path
        elif each.is_storage:
            for folder in _folders_without_mounts(each.path, points):
                count += 1
                if count > _MOST_FOLDERS:
                    raise Unsupported("there are too many folders beside mounts for an overlay of each")
                roots.append(folder)
                yield "overlay", folder
    for folder in working_folders():
        begin = _first_own_folder(folder)
        _refuse_foreign_files(folder)
        if any(is_below(each, begin) for each in points):
            continue  # found above: it was separated from the mounts, or could not be
        if begin.count("/") > 1:
            yield "overlay", begin
    for folder in _foreign_folders(roots, points):
        yield "overlay", folder


def _foreign_folders(roots: list[str], points: list[str]) -> list[str]:
    """Return the folders of others below some that this user may write, those above first.

    Not all of a large disk is searched: what is near the working folders comes first.
    """
    near = [str(each) for folder in working_folders() for each in Path(folder).parents]
    begin = [each for each in near if any(is_below(each, root) for root in roots)] + roots
    pending = deque(each for each in dict.fromkeys(begin) if each not in _SYSTEM)
    seen, count = set(pending), 0
    found = []
    while pending and count <= _MOST_SEARCHED:
        for entry in _entries(pending.popleft()):
            count += 1
            if entry.path in points or entry.path in _SYSTEM or not _is_folder_entry(entry):
                continue
            if entry.path not in seen:
                seen.add(entry.path)
                pending.append(entry.path)
            status = _status(entry.path)
            if status is not None and not _is_own(status) and _may_change(entry.path, status):
                found.append(entry.path)
    return sorted({*found})


def _may_change(path: str, status: os.stat_result) -> bool:
    return os.access(path, os.W_OK) or status.st_uid == os.geteuid()


def working_folders() -> list[str]:
    """Return the folders in which a program writes most: no two inside one another, the working directory first."""
    found: list[str] = []
    for each in (os.getcwd(), os.path.expanduser("~")):  # noqa: PTH109, PTH111 -- texts, as in the plan
        folder = os.path.realpath(each)
        if is_folder(folder) and os.access(folder, os.W_OK) and not any(is_below(folder, other) for other in found):
            found.append(folder)
    return found


def _first_own_folder(folder: str) -> str:
    """Return the highest folder above one from which on all folders below belong to this user and group."""
    while folder != "/" and _is_own(os.stat(folder)):  # noqa: PTH116 -- as above
        folder = os.path.dirname(folder)  # noqa: PTH120 -- as above
    return folder


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and status.st_gid == os.getegid()


def _refuse_foreign_files(folder: str) -> None:
    count = 0
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            count += 1
            if count > _MOST_SEARCHED:
                return
            status = _status(f"{path}/{name}")
            if status is not None and not _is_own(status) and _may_change(f"{path}/{name}", status):
                raise Unsupported(
                    f"{path}/{name} belongs to another user or group, of which an ordinary user cannot make a copy"
                )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _folders_without_mounts(folder: str, points: list[str]) -> Iterator[str]:
    if any(is_below(folder, each) for each in _SHARED) and not is_below(folder, MEMORY_FILES):
        return
    if not any(is_below(each, folder) for each in points if each != folder):
        yield folder
        return
    if os.access(folder, os.W_OK):
        inside = next(each for each in points if each != folder and is_below(each, folder))
        raise Unsupported(
            f"{folder!r} cannot get an overlay, as {inside!r} is a mount inside, and an ordinary user may not separate "
            "them"
        )
    try:
        entries = sorted(os.scandir(folder), key=lambda each: each.name)
    except OSError:  # not readable: the program cannot list it either, but may know names
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and entry.path not in points:
            yield from _folders_without_mounts(entry.path, points)


def is_semaphore(path: str) -> bool:
    """Return True for the path of a POSIX semaphore, which is no file to its users."""
    return path.startswith(_SEMAPHORES)


def sockets() -> list[str]:
    """Return the sockets, pipes and semaphores of other processes: a copy of one is connected to nothing.

    They are those among temporary files and in shared memory.
    """
    found = [each.path for each in _entries(MEMORY_FILES) if is_semaphore(each.path)]
    for folder in dict.fromkeys(["/tmp", os.environ.get("TMPDIR", "/tmp")]):  # noqa: S108 -- read only
        for entry in _entries(folder):
            if _is_rendezvous(entry):
                found.append(entry.path)
            elif _is_folder_entry(entry):
                found += [each.path for each in _entries(entry.path) if _is_rendezvous(each)]
    return [os.path.realpath(each) for each in found]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return []


def _is_folder_entry(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_rendezvous(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
