"""Metal's shaders, which need Metal, for `forebay.mps` to list."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from forebay.errors import Unsupported
from forebay.mps._kind import check_there

__all__ = ["compile_shader", "load_metallib"]

_REASON = "it takes Metal to {do}. Compute with NumPy in host memory, or with MLX or PyTorch on a Mac."


def compile_shader(source: str) -> NoReturn:
    """Not supported: there is no Metal. RuntimeError where there is no MPS device, else Unsupported."""
    check_there()
    if not isinstance(source, str):
        raise TypeError(f"expected a shader's source as str, got {type(source).__name__}")
    raise Unsupported("forebay.mps.compile_shader is not supported: " + _REASON.format(do="compile and run a shader"))


def load_metallib(source: Any) -> NoReturn:
    """Not supported: there is no Metal. RuntimeError where there is no MPS device, else Unsupported.

    TypeError for what is neither the bytes of a library nor its path.
    """
    if not isinstance(source, (bytes, bytearray, str, os.PathLike)):
        raise TypeError(f"expected bytes or path, got {type(source).__name__}")
    check_there()
    raise Unsupported("forebay.mps.load_metallib is not supported: " + _REASON.format(do="load and run a library"))
