"""The line of the program that is executed, and what the functions that it calls allocate memory for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

from forebay.interop.torch.attribution.allocation_roles import role_of
from forebay.records.frame_kinds import FrameKind, kind_of_file

__all__ = ["Site", "is_library", "user_site"]

_HERE = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[3]}/")  # wherever they are installed
_kinds: dict[CodeType, tuple[bool, str]] = {}  # whether it is hidden, and its role: names take ten times as long

Site = tuple[CodeType, int]  # the function and its line


def user_site() -> tuple[Site | None, str]:
    """Return the innermost function outside PyTorch, forebay and the standard library, its line, and the role.

    The site is None if the program has no frame, as in a thread of PyTorch. The role is that of the innermost function
    that has one, down to the site: what memory is for that it allocates, "" if unknown.
    """
    frame: FrameType | None = sys._getframe(2)  # the documented way to walk the stack
    role = ""
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code)
        if kind is None:
            name = code.co_filename
            kind = _kinds[code] = (is_library(name), role_of(name, code.co_name))
        role = role or kind[1]
        if not kind[0]:
            return (code, frame.f_lineno), role
        frame = frame.f_back
    return None, role


def is_library(file: str) -> bool:
    """Return True for a file of PyTorch, forebay or the standard library, and for generated code."""
    return kind_of_file(file) <= FrameKind.STANDARD or file.startswith(_HERE)
