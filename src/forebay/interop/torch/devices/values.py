"""The place of the values of emulated tensors: on the CPU, or nowhere if only shapes are computed."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Literal, get_args

import torch

from forebay._base.untrusted import shortened
from forebay.errors import ForebayError
from forebay.interop.torch.processes import unread_values

__all__ = [
    "DataDependent",
    "Mode",
    "calling_frames",
    "calling_line",
    "device",
    "is_computed",
    "is_strict",
    "needs_values",
    "not_computed",
    "set_mode",
]

Mode = Literal["compute", "shapes", "strict"]
_device = "cpu"
_strict = False
_HIDDEN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[3]}/", "<frozen")
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}/", "<string>", "<eval_with_key>")  # and code that they generate
_MOST_CHARACTERS = 200  # of the text of a line, which generated code may make as long as it likes
_PACKAGES = ("/site-packages/", "/dist-packages/")


class DataDependent(ForebayError):
    """A program without values needs a value; `line` is that of the program."""

    line: str = ""


def set_mode(mode: Mode) -> None:
    """Compute the values of tensors that are created from now on ("compute"), or only their shapes.

    Without values, a read returns an assumed one ("shapes"), or raises DataDependent ("strict").
    """
    global _device, _strict
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be 'compute', 'shapes' or 'strict', not {mode!r}")
    _device, _strict = "cpu" if mode == "compute" else "meta", mode == "strict"


def device() -> str:
    """Return PyTorch's device of the values."""
    return _device


def is_computed() -> bool:
    """Return True if values are computed."""
    return _device == "cpu"


def is_strict() -> bool:
    """Return True if no values are assumed in place of those that are not computed."""
    return _strict


def needs_values(what: str) -> DataDependent:
    """Return the error for an operator that needs the values of tensors that have none."""
    lines, _ = _lines()
    text = f"{what} needs the values of a tensor, which are not computed with shapes only: {', called by '.join(lines)}"
    return not_computed(f"{text}. Skip this line, or run with --compute (mode='compute')", lines[-1])


def not_computed(text: str, line: str) -> DataDependent:
    """Return the error for a line that needs a value which is not computed, and note the line."""
    error = DataDependent(text)
    error.line = line
    unread_values.note(line)  # also if the program catches the error
    return error


def calling_line() -> tuple[str, tuple[str, int] | None]:
    """Return the line of the program that calls PyTorch, and the file and number of the innermost line, if known."""
    lines, place = _lines()
    return lines[-1], place


def calling_frames() -> Iterator[FrameType]:
    """Yield the frames outside PyTorch and forebay that call, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HIDDEN):
            yield frame
        frame = frame.f_back


def _lines() -> tuple[list[str], tuple[str, int] | None]:
    """Return the calling line outside PyTorch and forebay and, if a library has it, the line of the program.

    The second result is the file and the number of the first.
    """
    lines: list[str] = []
    place: tuple[str, int] | None = None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        is_of_library = name.startswith(_LIBRARIES) or any(folder in name for folder in _PACKAGES)
        if not name.startswith(_HIDDEN) and not (is_of_library and lines):
            line = shortened(linecache.getline(name, frame.f_lineno).strip(), _MOST_CHARACTERS)
            place = place or (name, frame.f_lineno)
            lines.append(f"{name}:{frame.f_lineno}" + (f": {line}" if line else ""))
            if not is_of_library:
                break
        frame = frame.f_back
    return lines or ["unknown line"], place
