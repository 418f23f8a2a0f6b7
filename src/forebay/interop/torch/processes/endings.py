"""Exceptions that ended a process or a thread, as words and facts."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from forebay._base.untrusted import printable, shortened
from forebay._base.verdicts import Ending, How
from forebay.errors import OutOfMemory
from forebay.interop.torch.processes.missing_data import missing_data
from forebay.records.frame_kinds import FrameKind, kind_of_file

__all__ = ["ending_of", "line_of", "with_status"]

_OURS = f"{Path(__file__).parents[3]}/"
_EXTENSIONS = "/torch/utils/cpp_extension.py"
_MOST = 300  # characters of a message
_DEPTH = 100  # exceptions in a chain


def ending_of(error: BaseException, where: str = "") -> Ending:
    """Return how an exception ended a process, or what `where` names, such as a thread."""
    if isinstance(error, SystemExit):
        what = f"SystemExit: {shortened(printable(' '.join(str(error.code).split())), _MOST)}"
        return with_status(_status_of(error), f"{what} ({where})" if where else what, error)
    name = type(error).__name__
    text = _unbuilt(error) or shortened(printable(" ".join(str(error).split())), _MOST)
    what = text if _is_out_of_memory(error) and text else f"{name}: {text}" if text else name
    return Ending(
        How.EXCEPTION,
        f"{what} ({where})" if where else what,
        line_of(error),
        raised_out_of_memory=any(map(_is_out_of_memory, _causes(error))),
        handling_out_of_memory=isinstance(error, Exception) and any(map(_is_out_of_memory, _contexts(error))),
        missing=_missing(error),
    )


def _unbuilt(error: BaseException) -> str:
    """Return that an extension cannot be built or loaded, not what a compiler has printed; "" for other errors."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    building = [each for each in frames if each.f_code.co_filename.endswith(_EXTENSIONS)]
    has_cuda = any(each.f_locals.get("with_cuda") or "cuda_home" in each.f_code.co_name for each in building)
    if not has_cuda:
        return ""
    name = next((found for each in building if isinstance(found := each.f_locals.get("name"), str)), "")
    what = f"the CUDA extension {printable(name)}" if name else "a CUDA extension"
    return f"{what} cannot be built or loaded here: it needs a GPU"


def _missing(error: BaseException) -> str:
    """Return the data that was missing, see Note [Missing data]; "" also if the exceptions cannot be looked at."""
    with suppress(Exception):
        return missing_data([*_causes(error)], [*_contexts(error)])
    return ""


def with_status(status: int, what: str = "", error: BaseException | None = None) -> Ending:
    """Return the end with an exit status; `error` is what carried it."""
    if not status:
        return Ending(How.FINISHED)
    return Ending(How.STATUS, what or f"exit status {status}", "" if error is None else line_of(error))


def line_of(error: BaseException) -> str:
    """Return the line of the program where an exception was raised, such as "train.py:12"; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename and not _is_library(error.filename):
        return printable(f"{error.filename}:{error.lineno}")
    frames = [*_lines(error.__traceback__)]
    own = [each for each in frames if not _is_library(each[0])]
    outside = [each for each in frames if not each[0].startswith(_OURS) and kind_of_file(each[0]) > FrameKind.NEVER]
    file, line = (own or outside or frames or [("", 0)])[-1]
    return printable(f"{file}:{line}") if file else ""


def _lines(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the files and lines, outermost first."""
    for frame, line in traceback.walk_tb(trace):
        yield frame.f_code.co_filename, line


def _is_library(file: str) -> bool:
    return file.startswith(_OURS) or kind_of_file(file) is not FrameKind.OWN


def _status_of(error: SystemExit) -> int:
    """Return the status with which Python exits."""
    code = error.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OutOfMemory):
        return True
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    return isinstance(kind, type) and isinstance(error, kind)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from; those of a group, too."""
    yield from _chain(error, contexts=False)


def _contexts(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that were handled when it was raised."""
    yield from _chain(error, contexts=True)


def _chain(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    pending, seen = [error], set[int]()
    while pending and len(seen) < _DEPTH:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        pending += [*inner, *filter(None, (each.__cause__, each.__context__ if contexts else None))]
