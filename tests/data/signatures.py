"""Signatures as text, for comparing PyTorch (make_torch_names.py) with forebay (tests/names)."""

from __future__ import annotations

import inspect
import re


class _Text:
    """An object whose repr is the text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def default_text(value: object) -> str:
    """Return the repr of a default; for classes and functions their qualified name. Addresses are removed."""
    if isinstance(value, type) or callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def signature_text(signature: inspect.Signature, *, bound: bool = False) -> str:
    """Return the signature as text without annotations, and without the first parameter if `bound`."""
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_wrapped(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters[bound:]))


def _wrapped(default: object) -> object:
    return default if default is inspect.Parameter.empty else _Text(default_text(default))
