"""Sources of forebay's kernels: CUDA C++, and the headers that they share with the native core."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from forebay.backends.nvidia.kernels.compiler import Program

__all__ = ["MAX_AXES", "axes_class", "own_program"]

_FOLDER = Path(__file__).parent / "device_code"
_STANDARD = ("algorithm", "cerrno", "cmath", "cstddef", "cstdint", "cstring", "type_traits")  # all are standard.hpp
# Numbers are the same on every device: nothing is fused that the source does not fuse.
_OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")
MAX_AXES = 64


def own_program(name: str, **macros: object) -> Program:
    """Return one of forebay's programs, compiled with the values of some macros."""
    options = (*_OPTIONS, *(f"-D{macro}={value}" for macro, value in macros.items()))
    return Program((_FOLDER / name).read_text(), name, options, _headers())


def axes_class(count: int) -> int:
    """Return the number of axes for which a kernel is compiled that can process `count` of them."""
    return next(each for each in (0, 8, MAX_AXES) if count <= each)


@cache
def _headers() -> tuple[tuple[str, str], ...]:
    shared = {str(path.relative_to(_FOLDER)): path.read_text() for path in sorted(_FOLDER.rglob("*.hpp"))}
    return (*shared.items(), *((name, '#include "standard.hpp"\n') for name in _STANDARD))
