"""Where the values of emulated tensors are: on the CPU, or nowhere if only shapes are computed."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from forebay.errors import ForebayError
from forebay.interop.torch.processes import unread_values

__all__ = ["DataDependent", "Mode", "device", "is_computed", "needs_values", "set_mode"]

Mode = Literal["compute", "shapes"]
_device = "cpu"
_HIDDEN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[3]}/", "<frozen")
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}/", "<string>", "<eval_with_key>")  # and code that they generate
_PACKAGES = ("/site-packages/", "/dist-packages/")


class DataDependent(ForebayError):
    """A program without values needs a value; `line` is that of the program."""

    line: str = ""


def set_mode(mode: Mode) -> None:
    """Compute the values of tensors that are created from now on ("compute"), or only their shapes ("shapes")."""
    global _device  # noqa: PLW0603 -- the mode of the process
    if mode not in ("compute", "shapes"):
        raise ValueError(f"mode must be 'compute' or 'shapes', not {mode!r}")
    _device = "cpu" if mode == "compute" else "meta"


def device() -> str:
    """Return PyTorch's device of the values."""
    return _device


def is_computed() -> bool:
    """Return True if values are computed."""
    return _device == "cpu"


def needs_values(what: str) -> DataDependent:
    """Return the error for an operator that needs the values of tensors that have none."""
    lines = _lines()
    text = f"{what} needs the values of a tensor, which are not computed with shapes only: {', called by '.join(lines)}"
    error = DataDependent(f"{text}. Skip this line, or run with --compute (mode='compute')")
    error.line = lines[-1]
    unread_values.note(error.line)  # also if the program catches the error
    return error


def _lines() -> list[str]:
    """Return the calling line outside PyTorch and forebay and, if a library has it, the line of the program."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        is_of_library = name.startswith(_LIBRARIES) or any(folder in name for folder in _PACKAGES)
        if not name.startswith(_HIDDEN) and not (is_of_library and lines):
            line = linecache.getline(name, frame.f_lineno).strip()
            lines.append(f"{name}:{frame.f_lineno}" + (f": {line}" if line else ""))
            if not is_of_library:
                break
        frame = frame.f_back
    return lines or ["unknown line"]
