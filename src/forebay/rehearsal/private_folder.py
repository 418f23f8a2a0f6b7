"""A folder for the changes of one run, which the next run removes if this one was killed."""

from __future__ import annotations

from forebay._base.temporary_folders import LockedFolder

__all__ = ["PrivateFolder"]


class PrivateFolder(LockedFolder):
    """A folder that only this user can read, with a lock file: Note [Locks of temporary folders]."""

    def __init__(self) -> None:
        super().__init__("forebay-rehearsal-")
        for name in ("upper", "deleted"):
            (self.path / name).mkdir()
