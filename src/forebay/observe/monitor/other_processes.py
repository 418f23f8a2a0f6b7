"""Processes of all users on the machine's GPUs: their programs and users, as the system tells them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay._base.untrusted import printable, shortened

__all__ = ["OtherProcess", "other_process"]

_MOST = 4096  # bytes of a command line


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """A process that offers no figures."""

    program: str  #: the program and its arguments; "" if the system does not tell
    user: str  #: the name of its user, or the number; "" likewise


def other_process(pid: int) -> OtherProcess:
    """Return what the system tells about a process. It may have ended, or be in another container.

    Parameters
    ----------
    pid : int
        Process id.
    """
    program, user = "", ""
    with suppress(OSError):
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            words = file.read(_MOST).decode(errors="replace").split("\0")
        program = " ".join([os.path.basename(words[0]), *words[1:]]).strip()  # noqa: PTH119 -- a text
    with suppress(OSError):
        program = program or f"[{Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()}]"
    with suppress(OSError):
        user = _name_of(Path(f"/proc/{pid}").stat().st_uid)
    return OtherProcess(printable(shortened(program, 1000)), printable(user))


def _name_of(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return str(user)
