"""Start of a program whose changes of files are private: in a mount namespace, or else by Python's functions.

# Note [Private files]
A program without values must not overwrite a checkpoint, a log or a database by what it did not compute, whatever it
uses: Python, C libraries, or other programs. So it runs in a mount namespace of its own with overlays over all storage,
which a helper of the standard library enters, as the kernel refuses a user namespace to a process with threads, and
NumPy starts some. The changes are in a tmpfs of the namespace, which the kernel removes however the processes end; the
launcher reads them through a descriptor of its folder, so that no mount is visible outside. Where no namespace can be
made, Python's functions are redirected, which covers less. Rejected: an audit hook, which observes and cannot redirect;
and copies of the folders, as datasets are large.
Test: tests/rehearsal/test_launch.py::test_namespace_covers_other_programs_and_libraries,
  tests/rehearsal/test_launch.py::test_killed_program_leaves_no_mount_and_no_changes
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay._base.system_memory import usable_memory
from forebay.errors import ForebayError, Unsupported
from forebay.rehearsal.changes import Layer
from forebay.rehearsal.mount_plan import MountPlan, make_plan, may_mount, working_folders
from forebay.rehearsal.private_folder import PrivateFolder
from forebay.rehearsal.variables import CHANNEL, FOLDER, MECHANISM, RENAMES

__all__ = ["CHANNEL", "FOLDER", "MECHANISM", "RENAMES", "Launched", "inherited_descriptors", "launch"]

_ENTRY = str(Path(__file__).with_name("namespace_entry.py"))
_FULL_ATTRIBUTES = (6, 6)  # Linux: the first whose tmpfs has the attributes that overlays of ordinary users need


@dataclass
class Launched:
    """A program that was started, and where its changes are."""

    process: subprocess.Popen[bytes]
    mechanism: str  # "namespace" or "python"
    why_not: str  # the reason for "python"
    channel: socket.socket
    layers: list[Layer]
    read_only: tuple[str, ...] = ()
    _handles: list[int] = field(default_factory=list)
    _folder: PrivateFolder | None = None

    @property
    def is_full(self) -> bool:
        """True if no more changes fit in."""
        with suppress(OSError):
            found = os.statvfs(self.layers[0].upper)
            return found.f_bavail * found.f_frsize < 1 << 16
        return False

    @property
    def capacity(self) -> int:
        """Bytes that the changes can take."""
        found = os.statvfs(self.layers[0].upper)
        return found.f_blocks * found.f_frsize

    def close(self) -> None:
        """Forget the changes. Processes that still run keep theirs."""
        self.channel.close()
        while self._handles:
            os.close(self._handles.pop())
        if self._folder is not None:
            self._folder.remove()


def launch(
    program: Sequence[str], real: Sequence[str], *, environment: Mapping[str, str] | None = None,
    size: str = "", dies_with_parent: bool = True, **options: Any,
) -> Launched:  # fmt: skip
    """Start a program with private changes. Folders in `real` it changes for real.

    `environment` is by default that of this process. `size` is what changes may take in a mount namespace, such as
    "4g"; by default half of the memory that the process may use. `dies_with_parent` ends the program when the thread
    that calls this ends without having waited for it. The options are arguments of subprocess.Popen. ForebayError is
    raised if the environment variable FOREBAY_REHEARSAL asks for what is not possible.
    """
    given = dict(os.environ if environment is None else environment)
    wanted = given.get(MECHANISM, "") or "auto"
    if wanted not in ("auto", "namespace", "python", "inside"):
        raise ForebayError(f"{MECHANISM} must be 'auto', 'namespace' or 'python', not {wanted!r}")
    reasons: list[str] = []
    if wanted != "python":
        # Root in a user namespace, as in a container without root, may mount, but not over the mounts of the machine.
        for privileged in [True, False] if may_mount() else [False]:
            try:
                plan = make_plan(real, privileged=privileged)
                return _in_namespace(plan, program, dict(given), size, options, dies_with_parent=dies_with_parent)
            except (Unsupported, OSError) as error:
                reasons.append(str(error))
        if wanted == "namespace":
            raise ForebayError(f"no mount namespace with overlays can be made here: {reasons[0]}")
    why_not = reasons[0] if reasons else f"{MECHANISM} is 'python'"
    return _with_functions(program, real, given, why_not, options, dies_with_parent=dies_with_parent)


def _in_namespace(
    plan: MountPlan, program: Sequence[str], environment: dict[str, str], size: str, options: dict[str, Any], *,
    dies_with_parent: bool,
) -> Launched:  # fmt: skip
    if sys.platform != "linux":
        raise Unsupported(f"{sys.platform} has no mount namespaces")
    folder = None if plan.privileged or _has_attributes() else PrivateFolder()
    details = {
        "privileged": plan.privileged,
        "steps": plan.steps,
        "size": size or str(usable_memory() // 2),
        "store": folder and str(folder.path),
        "needed": working_folders(),
        "parent": os.getpid(),
        "dies_with_parent": dies_with_parent,
    }
    ours, theirs = socket.socketpair()
    with theirs:
        environment |= {MECHANISM: "inside", CHANNEL: str(theirs.fileno())}
        if not plan.privileged:
            environment[RENAMES] = "1"
        entry = [sys.executable, "-I", "-S", _ENTRY, str(theirs.fileno()), json.dumps(details), *program]
        passed = [theirs.fileno(), *inherited_descriptors()]
        process = subprocess.Popen(entry, env=environment, pass_fds=passed, **options)
    try:
        answer, handles, _, _ = socket.recv_fds(ours, 1 << 20, 1)
        sealed = _sealed(answer, handles)
    except BaseException:
        ours.close()
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()
        if folder is not None:
            folder.remove()
        raise
    changes = f"/proc/self/fd/{handles[0]}"
    layers = [Layer(path, f"{changes}/{number}/upper") for number, path in enumerate(plan.overlays)]
    return Launched(process, "namespace", "", ours, layers, (*plan.sealed, *sealed), list(handles), folder)


def _sealed(answer: bytes, handles: list[int]) -> list[str]:
    """Return the folders that are read-only. Raises Unsupported with the reason of the process if it failed."""
    if not handles:
        raise Unsupported(json.loads(answer)["failed"] if answer else "the process that enters it ended")
    found: list[str] = json.loads(answer)["sealed"]
    return found


def _with_functions(
    program: Sequence[str], real: Sequence[str], environment: dict[str, str], why_not: str, options: dict[str, Any], *,
    dies_with_parent: bool,
) -> Launched:  # fmt: skip
    folder = PrivateFolder()
    ours, theirs = socket.socketpair()
    with theirs:
        environment |= {MECHANISM: "inside", CHANNEL: str(theirs.fileno())}
        details = {"folder": str(folder.path), "real": [*real], "parent": os.getpid() if dies_with_parent else 0}
        environment[FOLDER] = json.dumps(details)
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # Python writes it by functions of its own
        # The program has the lock, too: as long as it runs, another run does not remove the folder.
        passed = [theirs.fileno(), folder.lock, *inherited_descriptors()]
        process = subprocess.Popen(program, env=environment, pass_fds=passed, **options)
    layer = Layer("/", str(folder.path / "upper"), str(folder.path / "deleted"))
    return Launched(process, "python", why_not, ours, [layer], (), [], folder)


def inherited_descriptors() -> list[int]:
    """Return the descriptors beyond standard error that a program gets from its caller, such as those of `<(...)`.

    Those that Python opens are not inherited unless the caller of this process has asked for it.
    """
    found = []
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):  # noqa: PTH208 -- names
            with suppress(OSError, ValueError):  # closed since it was listed: the descriptor of the list itself
                if int(name) > 2 and os.get_inheritable(int(name)):
                    found.append(int(name))
    return found


def _has_attributes() -> bool:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    try:
        return (int(numbers[0]), int(numbers[1])) >= _FULL_ATTRIBUTES
    except (ValueError, IndexError):
        return False
