"""The output directory of `forebay run`: numbered, so that an earlier report is kept."""

from __future__ import annotations

import itertools
from pathlib import Path

from forebay._base.atomic_write import check_writable
from forebay._base.trusted_folders import check_folder, make_folder
from forebay.commands import CommandError

SNAPSHOT, REPORT, SUMMARY, PICKLE = "snapshot.forebay", "report.html", "summary.json", "snapshot.pickle"
SMALL_ARRAYS = "snapshot-small-arrays.forebay"
_FILES = (REPORT, SNAPSHOT, SUMMARY, PICKLE, "snapshot-*.forebay")
_CHILDREN = "process-*"  # directories of the reports of child processes


def default_folder() -> Path:
    """Return where a report goes by default: the working directory, or HOME if that one is not to be trusted.

    Root in a container usually works in a folder that it shares with a user of the machine: see Note [Trusted folders].
    The program must run there, and its report be found, without an option.
    """
    try:
        check_folder(Path().stat(), Path.cwd())
    except PermissionError:
        return Path.home()
    except OSError:  # it is missing: reported when the directory is made
        pass
    return Path()


def free_directory(wanted: Path) -> Path:
    """Return the directory, or with a number (`forebay-report-2`) the first that has no report."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([wanted], numbered) if not has_report(each, _CHILDREN))


def has_report(directory: Path, *more: str, own: Path | None = None) -> bool:
    """Return True if the directory contains a report besides the file `own`, or a file of the patterns `more`."""
    try:
        files = any(path.is_file() and path != own for pattern in _FILES for path in directory.glob(pattern))
        return files or any(next(directory.glob(pattern), None) is not None for pattern in more)
    except (OSError, ValueError):  # reported when the directory is made
        return False


def is_of_report(directory: Path, path: Path) -> bool:
    """Return True for the path of a file of the report in the directory, or of a report of a child process."""
    parents = [path.parent, path.parent.parent] if path.parent.match(_CHILDREN) else [path.parent]
    return directory in parents and any(path.match(pattern) for pattern in _FILES)


def make_directory(directory: Path) -> None:
    """Make the directory and check that files can be written to it. Raises CommandError."""
    try:
        make_folder(directory)
        for name in (SUMMARY, REPORT, SNAPSHOT, PICKLE):
            if not (directory / name).is_dir():
                check_writable(directory / name, "the report")
    except (FileExistsError, NotADirectoryError) as error:
        raise CommandError(f"cannot write the report to {str(directory)!r}: it is not a directory") from error
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot write the report to {str(directory)!r}: {reason(error)}") from error
    for name in (SNAPSHOT, REPORT, SUMMARY):
        if (directory / name).is_dir():
            raise CommandError(f"cannot write {str(directory / name)!r}: it is a directory")


def reason(error: BaseException) -> str:
    """Return an error message in one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(message.split()) or type(error).__name__
