"""Signatures as comparable text, the same for PyTorch (make_torch_names.py) and for forebay (tests/faces)."""

from __future__ import annotations

import inspect
import re


class _Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def default_text(value: object) -> str:
    """A default as it is typed: classes and functions by their name, no addresses."""
    if isinstance(value, type) or callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def signature_text(signature: inspect.Signature, *, bound: bool = False) -> str:
    """Parameters without annotations; `bound`: without the first."""
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_shown(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters[bound:]))


def _shown(default: object) -> object:
    return default if default is inspect.Parameter.empty else _Shown(default_text(default))
