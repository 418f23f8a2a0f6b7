"""Metal shader functions of `forebay.mps`, which are not supported."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from forebay.faces.unsupported import unsupported_error
from forebay.mps._kind import check_available

__all__ = ["compile_shader", "load_metallib"]


def compile_shader(source: str) -> NoReturn:
    """Raise Unsupported: there is no Metal.

    Parameters
    ----------
    source : str
        The shader's source.

    Raises
    ------
    Unsupported
        If there is an MPS device.
    ForebayError
        If there is no MPS device.
    TypeError
        If `source` is not a str.

    Notes
    -----
    As `torch.mps.compile_shader`.
    """
    check_available()
    if not isinstance(source, str):
        raise TypeError(f"source must be a str, not {type(source).__name__}")
    raise unsupported_error("forebay.mps.compile_shader")


def load_metallib(source: Any) -> NoReturn:
    """Raise Unsupported: there is no Metal.

    Parameters
    ----------
    source : bytes or bytearray or str or os.PathLike
        The library or its path.

    Raises
    ------
    Unsupported
        If there is an MPS device.
    ForebayError
        If there is no MPS device.
    TypeError
        If `source` is neither bytes nor a path.

    Notes
    -----
    As `torch.mps.load_metallib`.
    """
    if not isinstance(source, (bytes, bytearray, str, os.PathLike)):
        raise TypeError(f"expected bytes or path, got {type(source).__name__}")
    check_available()
    raise unsupported_error("forebay.mps.load_metallib")
