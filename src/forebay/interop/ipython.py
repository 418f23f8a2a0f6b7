"""The IPython extension: `%load_ext forebay` adds the cell magic `%%memory`.

IPython calls a cell magic while its event loop runs and does not await it, so a cell with a top-level `await` cannot be
measured; `with forebay.memory.peak():` can be used there.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from forebay._base.device_spec import CPU
from forebay.interop.cell_memory import CellMemory
from forebay.records.site_choice import SiteChoice, site_choice
from forebay.runtime.devices.current import opened_for

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_NAME = "memory"
_ROWS = 5
_AWAIT = re.compile(r"'await' outside|'async \w+' outside|asynchronous comprehension outside")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the cell magic `%%memory` to an IPython shell.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell, as `%load_ext` passes it.
    """
    from IPython.core import magic

    setattr(_MemoryMagic.memory, getattr(magic, "MAGIC_OUTPUT_CAN_BE_SILENCED", "_"), True)  # by a semicolon
    shell.register_magic_function(_MemoryMagic(shell).memory, magic_kind="cell", magic_name=_NAME)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove the cell magic `%%memory`.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The shell.
    """
    shell.magics_manager.magics["cell"].pop(_NAME, None)


class _MemoryMagic:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def memory(self, line: str, cell: str) -> object:
        """Run the cell and display its memory use: a timeline, the peak, and the sites of the allocations.

        Usage: %%memory [--device DEVICE] [--sites N] [--depth N] [--library] [--site REGEX]

        --device DEVICE  the device to measure, such as cuda:0; by default the CPU device, on which the cell's NumPy
                         arrays are allocated
        --sites N        rows in the tables of allocation sites; 5 by default, 0 for no tables
        --depth N        lines of your own code that make a site; 1 by default
        --library        take the innermost line, also of a library
        --site REGEX     take the innermost frame in whose `file:line name` the expression is found
        """
        __tracebackhide__ = True  # a traceback begins in the cell
        device, rows, choice = _parse(line)
        code = self._compile(line, cell)
        with self._measuring(_cell_memory(device), rows, choice):
            return self._execute(*code)

    def _compile(self, line: str, cell: str) -> tuple[CodeType, CodeType | None]:
        """Compile the cell, and separately the expression at its end, whose value is displayed."""
        compiler = self._shell.compile
        text = f"\n{self._shell.transform_cell(cell)}"  # the magic's own line is the first of the cell
        file = compiler.cache(text, self._number(), raw_code=f"%%{_NAME} {line}\n{cell}")
        try:
            tree = self._shell.transform_ast(compiler.ast_parse(text, filename=file))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            body = compiler(tree, file, "exec")
            return body, None if last is None else compiler(ast.Expression(last.value), file, "eval")
        except SyntaxError as error:
            if _AWAIT.search(str(error.msg)):
                raise _usage_error(
                    "a cell with top-level await cannot be measured, as IPython does not await cell magics; use "
                    "`with forebay.memory.peak() as peak:` in an ordinary cell"
                ) from None
            raise error.with_traceback(None) from None

    def _execute(self, body: CodeType, last: CodeType | None) -> object:
        __tracebackhide__ = True
        names = self._shell.user_ns
        exec(body, names)  # noqa: S102 - the user's cell
        return None if last is None else eval(last, names)  # noqa: S307 - as above

    @contextmanager
    def _measuring(self, cell_memory: CellMemory, rows: int, choice: SiteChoice) -> Iterator[None]:
        """Measure inside the context, and display the report, also if the cell raises or is interrupted."""
        __tracebackhide__ = True
        try:
            with cell_memory.measuring():
                yield
        finally:
            try:
                from IPython.display import display

                if (report := cell_memory.report(rows, self._cell_of, choice)) is not None:
                    display(report)
            except Exception as error:  # noqa: BLE001 - the cell's outcome must not change
                print(f"%%{_NAME}: there is no report: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - as IPython reports

    def _number(self) -> int:
        """Return the number of the cell that runs. (The shell's count is already that of the next one in IPython 9.)"""
        frame = sys._getframe()  # noqa: SLF001 - documented, and the only way to a caller
        while (outer := frame.f_back) is not None:
            frame = outer
            if (number := self._cell_of(frame.f_code.co_filename)) is not None:
                return number
        return int(self._shell.execution_count)

    def _cell_of(self, file: str) -> int | None:
        """Return the number of the cell whose code has this file name."""
        format_name = getattr(self._shell.compile, "format_code_name", None)
        if format_name is None:  # before IPython 8
            found = re.fullmatch(r"<ipython-input-(\d+)-.*>", file)
        else:
            named = format_name(file)
            found = named and re.fullmatch(r"In\[(\d+)\]", named[1])
        return int(found[1]) if found else None


def _cell_memory(device: str) -> CellMemory:
    try:
        return CellMemory(opened_for(device))
    except Exception as error:  # noqa: BLE001 - of any backend: a wrong argument needs no traceback
        reason = str(error).partition("\n")[0]
        raise _usage_error(f"cannot measure the device {device!r}: {reason}") from None


def _parse(line: str) -> tuple[str, int, SiteChoice]:
    """Return the device and the number of sites that the magic's line names, and how sites are chosen."""
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser(prog=f"%%{_NAME}", add_help=False)
    parser.add_argument("--device", default=str(CPU))
    parser.add_argument("--sites", type=_row_count, default=_ROWS)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--site", default="")
    try:
        options = parser.parse_argstring(line)
        choice = site_choice(depth=options.depth, library=options.library, pattern=options.site)
    except ValueError as error:  # of shlex, such as a missing quotation mark, or an expression
        raise _usage_error(str(error)) from None
    return options.device, options.sites, choice


def _row_count(text: str) -> int:
    if text.isdecimal() and len(text) < 7:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")


def _usage_error(message: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(f"%%{_NAME}: {message}")
    return error
