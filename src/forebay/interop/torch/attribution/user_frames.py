"""The line of the program that is executed: the innermost frame outside PyTorch and forebay."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

__all__ = ["Site", "user_site"]

_HIDDEN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[3]}/", "<frozen", "<__array_function__")
_is_hidden: dict[CodeType, bool] = {}  # a test of the file's name takes ten times as long

Site = tuple[CodeType, int]  # the function and its line


def user_site() -> Site | None:
    """Return the function and the line; None if the program has no frame, as in a thread of PyTorch."""
    frame: FrameType | None = sys._getframe(2)  # the documented way to walk the stack
    while frame is not None:
        code = frame.f_code
        hidden = _is_hidden.get(code)
        if hidden is None:
            hidden = _is_hidden[code] = code.co_filename.startswith(_HIDDEN)
        if not hidden:
            return code, frame.f_lineno
        frame = frame.f_back
    return None
