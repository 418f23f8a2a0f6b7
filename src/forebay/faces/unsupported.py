"""Names that are there, with PyTorch's signatures, and say why they cannot work.

They stand in docs/differences.md. What a runtime can do is not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.errors import Unsupported

__all__ = ["unsupported", "unsupported_class"]


def unsupported(module: str, signature: str, reason: str) -> Callable[..., Any]:
    """A function of the module that takes what `signature` says, as "name(x, *, y=None)", and raises Unsupported.

    `reason` ends with the next step. What does not fit the signature is a TypeError, as for any function.

    >>> unsupported("forebay.cuda", "current_blas_handle()", "there is no cuBLAS here.")()
    Traceback (most recent call last):
    forebay.Unsupported: forebay.cuda.current_blas_handle is not supported: there is no cuBLAS here.
    """
    return _function(module, "", signature, reason)


def unsupported_class(module: str, name: str, reason: str, *members: str) -> Any:
    """A class of the module whose members are signatures, all of which raise Unsupported; `__init__` is one of them.

    A signature may follow a decorator: "@staticmethod create(x=1)", "@property size(self)".
    """
    namespace: dict[str, Any] = {"__module__": module, "__doc__": f"Not supported: {reason}"}
    for member in members:
        decorator, _, signature = member.rpartition("@")[2].partition(" ") if member[0] == "@" else ("", "", member)
        function = _function(module, f"{name}.", signature, reason)
        made = {"": function, "staticmethod": staticmethod(function), "classmethod": classmethod(function)}
        namespace[function.__name__] = property(function) if decorator == "property" else made[decorator]
    return type(name, (), namespace)


def _function(module: str, owner: str, signature: str, reason: str) -> Callable[..., Any]:
    name = signature.partition("(")[0]
    shown = f"{module}.{owner}{name}".removesuffix(".__init__")

    def error() -> Unsupported:
        return Unsupported(f"{shown} is not supported: {reason}")

    scope: dict[str, Any] = {"__name__": module, "_error": error}
    exec(f"def {signature}:\n    raise _error()", scope)  # noqa: S102 -- the text is a face's, as in a namedtuple
    function: Callable[..., Any] = scope[name]
    function.__qualname__ = owner + name
    function.__doc__ = f"Not supported: {reason}"
    return function
