"""Start of a program in a mount namespace with private overlays; a script of its own.

`python -I -S namespace_entry.py SOCKET PLAN PROGRAM [ARGS ...]` builds the tree of folders, sends a descriptor of the
folder with the changes through the socket, and becomes the program. It imports the standard library only: a user
namespace is refused to a process with several threads, and NumPy, which forebay imports, starts threads.

If a step fails, the reason is sent through the socket, and the status is 1. Nothing of the caller has changed then: the
mounts are those of this process, and end with it, however it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any

__all__ = ["enter", "main"]

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
# Of statvfs and of mount. Flags that a user namespace has inherited may not be removed.
_KEPT = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))
_DETACH = 2
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None, use_errno=True)
_STAGE = "/tmp"  # noqa: S108 -- any folder that exists: the mount over it is seen by this process only
_FULL = "redirect_dir=on,metacopy=on,index=off"  # folders can be renamed, and a new mode copies no content


class _StepFailed(Exception):
    """A step that the system does not permit."""


def main() -> None:
    """Build the tree, and become the program."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    plan = json.loads(sys.argv[2])
    folder = os.getcwdb()  # noqa: PTH109 -- pathlib is slow to import
    try:
        changes, sealed = enter(plan)
        os.chdir(folder)
    except (_StepFailed, OSError) as error:
        channel.sendall(json.dumps({"failed": str(error)}).encode())
        sys.exit(1)
    if plan["dies_with_parent"]:
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != plan["parent"]:  # it ended before this line
            os.kill(os.getpid(), signal.SIGKILL)
    socket.send_fds(channel, [json.dumps({"sealed": sealed}).encode()], [changes])
    os.close(changes)
    program = sys.argv[3:]
    os.set_inheritable(channel.detach(), True)
    os.execv(program[0], program)  # noqa: S606 -- the purpose of this file


def enter(plan: dict[str, Any]) -> tuple[int, list[str]]:
    """Enter a mount namespace with the tree of the plan.

    Returns a descriptor of the folder with the changes, and the folders that are read-only as they have no overlay.
    """
    if plan["privileged"]:
        _check(_libc.unshare(_NEW_MOUNTS), "unshare(CLONE_NEWNS)")
    else:
        _enter_user_namespace()
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("forebay", _STAGE, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={plan['size']},mode=0700")
    os.chdir(_STAGE)
    for name in ("old", "new", "changes"):
        os.mkdir(name)  # noqa: PTH102 -- pathlib is slow to import
    _check(_libc.syscall(_pivot_root(), b".", b"old"), "pivot_root")
    os.chdir("/")
    store = "/old" + plan["store"] if plan["store"] else "/changes"
    sealed = _build(plan, store)
    changes = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    os.chdir("/new")
    _check(_libc.syscall(_pivot_root(), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount2")
    os.chdir("/")
    return changes, sealed


def _build(plan: dict[str, Any], store: str) -> list[str]:
    number, sealed = 0, []
    for kind, path in plan["steps"]:
        source, target = f"/old{path.rstrip('/')}", f"/new{path.rstrip('/')}"
        if kind == "tree":
            _mount(source, target, None, _BIND | _RECURSIVE)
        elif kind == "overlay":
            try:
                _overlay(plan, source, target, f"{store}/{number}")
            except _StepFailed:  # such as of a file system without overlays: nothing can be changed there
                if any(each == path or each.startswith(path.rstrip("/") + "/") for each in plan["needed"]):
                    raise
                _bind(source, target, seal=True, recursive=False)
                sealed.append(path)
            number += 1
        else:
            _bind(source, target, seal=kind == "seal", recursive=not plan["privileged"])
    return sealed


def _overlay(plan: dict[str, Any], lower: str, target: str, folder: str) -> None:
    for name in ("", "/upper", "/work"):
        os.mkdir(folder + name)  # noqa: PTH102 -- as above
    _copy_attributes(lower, f"{folder}/upper", privileged=plan["privileged"])
    handle = os.open(lower, os.O_PATH | os.O_DIRECTORY)  # a name may contain the separators of the options
    try:
        layers = f"lowerdir=/old/proc/self/fd/{handle},upperdir={folder}/upper,workdir={folder}/work"
        if not plan["privileged"]:
            _mount("forebay", target, "overlay", 0, f"{layers},userxattr")
            return
        try:
            _mount("forebay", target, "overlay", 0, f"{layers},{_FULL}")
        except _StepFailed:  # an older kernel
            _mount("forebay", target, "overlay", 0, layers)
    finally:
        os.close(handle)


def _copy_attributes(lower: str, upper: str, *, privileged: bool) -> None:
    """Give the new layer the owner and the permissions of the folder: those of the overlay are the layer's."""
    found = os.stat(lower)  # noqa: PTH116 -- as above
    if privileged:
        os.chown(upper, found.st_uid, found.st_gid)
        os.chmod(upper, found.st_mode & 0o7777)  # noqa: PTH101 -- as above
        return
    # The layer belongs to the user also where another user owns the folder: the permissions that the folder grants to
    # the user become those of the layer's owner.
    mine = sum(bit << 6 for flag, bit in ((os.R_OK, 4), (os.W_OK, 2), (os.X_OK, 1)) if os.access(lower, flag))
    os.chmod(upper, (found.st_mode & 0o7077) | mine)  # noqa: PTH101 -- as above


def _bind(source: str, target: str, *, seal: bool, recursive: bool) -> None:
    if not os.path.lexists(source):
        return
    _mount(source, target, None, _BIND | (_RECURSIVE if recursive else 0))
    if seal:
        flags = os.statvfs(target).f_flag
        kept = sum(mount for flag, mount in _KEPT if flags & flag)
        _mount(None, target, None, _REMOUNT | _BIND | _READ_ONLY | kept)


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_USERS | _NEW_MOUNTS), "unshare(CLONE_NEWUSER | CLONE_NEWNS)")
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            with open(f"/proc/self/{file}", "w") as written:  # noqa: PTH123 -- as above
                written.write(text)
        except OSError as error:
            raise _StepFailed(f"/proc/self/{file}: {error.strerror}") from error


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, options)]
    what = f"mount of {kind or 'a folder'} at {target.removeprefix('/new') or '/'!r}"
    _check(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), what)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise _StepFailed(f"{what}: {os.strerror(ctypes.get_errno())}")


def _pivot_root() -> int:
    """Return the number of the system call, which the C library does not wrap."""
    return {"x86_64": 155, "i386": 217, "i686": 217}.get(os.uname().machine, 41)


if __name__ == "__main__":
    main()
