"""Where the values of emulated tensors are: on the CPU, or nowhere if only shapes are computed."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from forebay.errors import ForebayError

__all__ = ["DataDependent", "Mode", "device", "is_computed", "needs_values", "set_mode", "user_line"]

Mode = Literal["compute", "shapes"]
_device = "cpu"
_TORCH = str(Path(torch.__file__).parent)
_FOREBAY = str(Path(__file__).parents[3])


class DataDependent(ForebayError):
    """A program without values needs a value."""


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
    place, line = user_line()
    text = f"{what} needs the values of a tensor, which are not computed with shapes only"
    text += f": {place}" + (f": {line}" if line else "")
    return DataDependent(f"{text}. Skip this line, or run with --compute (mode='compute')")


def user_line() -> tuple[str, str]:
    """Return the place of the calling line outside PyTorch and forebay as "file:line", and its text."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _FOREBAY, "<frozen")):
        frame = frame.f_back
    if frame is None:
        return "unknown line", ""
    name, number = frame.f_code.co_filename, frame.f_lineno
    return f"{name}:{number}", linecache.getline(name, number).strip()
