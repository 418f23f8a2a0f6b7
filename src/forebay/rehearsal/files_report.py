"""Report of the files that a run without values has changed or created, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from forebay._base.byte_sizes import format_bytes
from forebay.rehearsal.changes import Change

__all__ = ["FilesReport", "NewFile", "make_report", "merge"]

_SHOWN = 8  # paths of each list on a terminal
_MOST = 10_000  # paths of each list in JSON
_IN_NAMESPACE = "in a private overlay of the file systems, which the program and its processes saw"
_BY_FUNCTIONS = "by Python's functions for files, in the program and in the Python processes that it started"
_NOT_COVERED = (
    "Programs that are not Python, and libraries that open files by themselves (HDF5, Arrow and others), may have "
    "changed files"
)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A new file that is not created: its size, and what it took."""

    path: str
    nbytes: int
    held: int


@dataclass(frozen=True, slots=True)
class FilesReport:
    """The files that a run without values left as they were, and those that it created."""

    mechanism: str  # "namespace" or "python"
    why_not: str = ""  # why there is no namespace; "" if there is one
    # changed, deleted, renamed: files that exist, and that the program changed only in its overlay.
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    not_created: tuple[NewFile, ...] = ()  # new files that stayed in the overlay
    created: tuple[str, ...] = ()  # new files, folders and links that were created
    read_only: tuple[str, ...] = ()  # what could not get an overlay, and could not be changed therefore
    # What was done so that other services receive no assumed numbers: for those that the program imported or, where
    # that is not known, for all.
    services: tuple[str, ...] = ()
    full: str = ""  # the size of the overlay if it is full; "" if it is not

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> FilesReport:
        """Return the report that `as_json` made."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        fields["not_created"] = tuple(NewFile(**each) for each in found["not_created"])
        return cls(**fields)

    def as_json(self) -> dict[str, Any]:
        """Return the report as values that `json.dumps` accepts."""
        return asdict(self)

    @property
    def how(self) -> str:
        """The way in which changes were redirected, and the changes that it does not cover."""
        if self.mechanism == "namespace":
            return f"Changes were redirected {_IN_NAMESPACE}."
        return f"Changes were redirected {_BY_FUNCTIONS}: {self.why_not}. {_NOT_COVERED}."

    def sentences(self) -> list[str]:
        """Return what a reader must know in any case."""
        found = [] if self.mechanism == "namespace" else [self.how]
        if self.full:
            found.append(f"The overlay is full ({self.full}), so the program may have failed to write.")
        return found

    def lists(self) -> Iterator[tuple[str, list[str]]]:
        """Return each list with its heading, shortened."""
        new = [_sized(each) for each in self.not_created]
        for heading, paths in (
            ("not changed, although the program changed it", self.changed),
            ("not deleted, although the program deleted it", self.deleted),
            ("not renamed or made anew, although the program did so", self.renamed),
            ("not created, as its content may depend on values", new),
            ("created", self.created),
            ("was read-only, as it cannot get an overlay", self.read_only),
            ("services received no assumed numbers", self.services),
        ):
            if paths:
                more = [f"… and {len(paths) - _SHOWN:,} more"] if len(paths) > _SHOWN else []
                yield heading, [*paths[:_SHOWN], *more]


def _sized(file: NewFile) -> str:
    size = format_bytes(file.nbytes)
    return f"{file.path} ({size})" if file.held >= file.nbytes // 2 else f"{file.path} ({size}, without its values)"


def make_report(
    changes: list[Change], chosen: list[Change], mechanism: str, why_not: str = "", read_only: tuple[str, ...] = (),
    services: tuple[str, ...] = (), full: str = "",
) -> FilesReport:  # fmt: skip
    """Return the report of changes, of which those chosen are created."""
    created = {each.path for each in chosen}
    left = [each for each in changes if each.path not in created]
    by_kind = {kind: tuple(each.path for each in left if each.kind == kind)[:_MOST] for kind in _KINDS}
    new = (NewFile(each.path, each.nbytes, each.held) for each in left if each.kind == "new" and not each.is_folder)
    return FilesReport(
        mechanism, why_not, **by_kind, not_created=tuple(new)[:_MOST], created=tuple(sorted(created))[:_MOST],
        read_only=read_only, services=services, full=full,
    )  # fmt: skip


def merge(reports: Sequence[FilesReport]) -> FilesReport:
    """Return the report of several runs of a program: each path once."""
    first = next((each for each in reports if each.mechanism != "namespace"), reports[0])
    united: dict[str, Any] = {
        name: tuple(dict.fromkeys(path for each in reports for path in getattr(each, name)))
        for name in ("changed", "deleted", "renamed", "created", "read_only")
    }
    new = {each.path: each for report in reports for each in report.not_created}
    full = next((each.full for each in reports if each.full), "")
    return replace(first, **united, not_created=tuple(new.values()), full=full)


_KINDS = ("changed", "deleted", "renamed")
