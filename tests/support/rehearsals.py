"""Programs that change files in every way, started as a run without values starts them, and hashes of folders."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.rehearsal.changes import Change, read_changes
from forebay.rehearsal.launch import MECHANISM, launch

LIMIT = 60  # seconds

_START = "from forebay.rehearsal.inside import redirect_files; redirect_files()\n"


def tree(folder: Path) -> dict[str, str]:
    """Return what a user sees of a folder: type, permissions, time and content of every entry."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        time = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = f"{status.st_mode:o} {time} {content}"
    return found


def rehearse(source: str, folder: Path, mechanism: str, *, real: tuple[str, ...] = (), size: str = "64m"):
    """Run a program with private changes. Return its status, its output and the changes."""
    environment = {**os.environ, MECHANISM: mechanism}
    launched = launch(
        [sys.executable, "-c", _START + source], list(real), environment=environment, size=size, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = launched.process.communicate(timeout=LIMIT)
        return launched.process.returncode, output.decode(), read_changes(launched.layers), launched
    finally:
        launched.process.kill()
        launched.process.wait()


def kinds(changes: list[Change], folder: Path) -> dict[str, str]:
    """Return the kind of each change in a folder."""
    inside = [each for each in changes if each.path.startswith(f"{folder}/")]
    return {each.path.removeprefix(f"{folder}/"): each.kind for each in inside}


def why_no_namespace() -> str:
    """Return why this machine has no mount namespaces; "" if it has."""
    if sys.platform != "linux":
        return "mount namespaces are Linux's"
    from forebay.errors import ForebayError

    try:
        launched = launch(["/bin/true"], [], environment={**os.environ, MECHANISM: "namespace"})
    except ForebayError as error:
        return str(error)
    launched.process.wait()
    launched.close()
    return ""


NO_NAMESPACE = why_no_namespace()
needs_namespace = pytest.mark.skipif(bool(NO_NAMESPACE), reason=NO_NAMESPACE or "there are namespaces")
