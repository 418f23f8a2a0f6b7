"""The IPython extension with both cell magics: `%%memory`, and `%%fit`, on which cards a cell with PyTorch fits."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from forebay.interop import ipython

__all__ = ["fit", "load_ipython_extension", "run_cell", "unload_ipython_extension"]

_CARDS = "t4,l4,a100,h100"


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magics `%%memory` and `%%fit` to an IPython shell.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell, as `%load_ext` passes it.
    """
    ipython.load_ipython_extension(shell)

    def fit_magic(line: str, cell: str) -> object:
        __tracebackhide__ = True  # a traceback begins in the cell
        return fit(shell, line, cell)

    fit_magic.__doc__ = fit.__doc__
    shell.register_magic_function(fit_magic, magic_kind="cell", magic_name="fit")


def unload_ipython_extension(shell: Any) -> None:
    """Remove the cell magics.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell.
    """
    ipython.unload_ipython_extension(shell)
    shell.magics_manager.magics["cell"].pop("fit", None)


def fit(shell: Any, line: str, cell: str) -> object:
    """Run the cell on emulated cards, and return on which of them it fits.

    Usage: %%fit [--cards NAME,...] [--memory SIZE] [--count N] [--compute | --strict]

    --cards NAME,...  profiles of the cards; t4,l4,a100,h100 by default
    --memory SIZE     memory of each device, such as 24GiB; that of the card by default
    --count N         number of devices
    --compute         compute the values; by default only shapes are computed, and a value that is read is assumed
    --strict          compute only shapes, and assume no values

    The cell runs in a process of its own for each card, without a GPU. It gets the functions, classes and values of the
    notebook that it names, as copies, and changes nothing in the notebook.
    """
    from forebay.errors import ForebayError
    from forebay.interop.torch.fit import will_it_fit

    options = _parse(line)
    source = str(shell.transform_cell(cell))
    names = {name: value for name in _names(_compiled(source)) if (value := _of(shell.user_ns, name)) is not _MISSING}
    modules = {name: value.__name__ for name, value in names.items() if isinstance(value, ModuleType)}
    others = {name: value for name, value in names.items() if name not in modules}
    try:
        found = will_it_fit(
            partial(run_cell, source, modules, others), options.cards.split(","), mode=options.mode or "shapes",
            count=options.count, memory=options.memory,
        )  # fmt: skip
    except (ForebayError, ValueError) as error:
        raise _usage_error(str(error)) from None
    for message in dict.fromkeys(each.message for each in found if each.message and not each.fits):
        print(f"%%fit: {message}", file=sys.stderr)  # noqa: T201 - as IPython reports
    return found


def run_cell(source: str, modules: dict[str, str], names: dict[str, Any]) -> None:
    """Execute a cell with modules and values of a notebook.

    Parameters
    ----------
    source : str
        The text of the cell.
    modules : dict
        Names of modules by the names that the cell uses.
    names : dict
        Values by name.
    """
    from importlib import import_module

    scope: dict[str, Any] = {"__name__": "__main__", **names}
    scope.update((name, import_module(module)) for name, module in modules.items())
    exec(_compiled(source), scope)  # noqa: S102 - the user's cell


_MISSING = object()


def _of(namespace: dict[str, Any], name: str) -> object:
    return namespace.get(name, _MISSING) if not name.startswith("__") else _MISSING


def _compiled(source: str) -> CodeType:
    try:
        return compile(ast.parse(source, "<cell>"), "<cell>", "exec")
    except SyntaxError as error:
        raise _usage_error(f"line {error.lineno}: {error.msg}") from None


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that a piece of code, or a function in it, uses."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _parse(line: str) -> Any:
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser(prog="%%fit", add_help=False)
    parser.add_argument("--cards", default=_CARDS)
    parser.add_argument("--memory")
    parser.add_argument("--count", type=int, default=1)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--compute", dest="mode", action="store_const", const="compute")
    mode.add_argument("--strict", dest="mode", action="store_const", const="strict")
    try:
        return parser.parse_argstring(line)
    except ValueError as error:  # of shlex, such as a missing quotation mark
        raise _usage_error(str(error)) from None


def _usage_error(message: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(f"%%fit: {message}")
    return error
