"""Functions of programs, in the form in which they are sent to other processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError

__all__ = ["pack"]


def pack(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that call a function. Raises ForebayError if it cannot be sent to a process."""
    main = ""
    try:
        try:
            import cloudpickle  # type: ignore[import-untyped]  # has no annotations

            payload = cloudpickle.dumps((function, dict(parameters)))
        except ImportError:
            payload = pickle.dumps((function, dict(parameters)))
            main = getattr(sys.modules["__main__"], "__file__", None) or ""
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ForebayError(
            f"{function!r} cannot be sent to another process: {error}. Pass a function of a module, or install "
            "cloudpickle for functions of a notebook and lambdas"
        ) from error
    folders = tuple(str(Path(each).absolute()) for each in sys.path)
    return {"payload": payload, "main": main and str(Path(main).absolute()), "path": folders, "folder": str(Path.cwd())}
