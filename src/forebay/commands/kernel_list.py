"""The list of checked kernels, for `fit` and `run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console

    from forebay._base.kernel_checks import KernelCheck

__all__ = ["print_kernels"]

_MOST = 50  # kernels
_INDENT = 2


def print_kernels(console: Console, kernels: Sequence[KernelCheck], name: str = "") -> None:
    """Print the kernels, those with findings first; `name` is that of the card."""
    from rich.padding import Padding
    from rich.text import Text

    if not kernels:
        console.print(Text(printable(f"{name}no kernels of Triton were compiled")))
        return
    findings = sum(each.has_findings for each in kernels)
    count = f"{len(kernels)} kernel" + "s" * (len(kernels) != 1)
    console.print(Text(printable(f"{name}{count} of Triton, {findings or 'none'} with findings"), "bold"))
    for each in kernels[:_MOST]:
        line = each.line.replace(f"{Path.cwd()}/", "")
        console.print(Padding.indent(Text(printable(f"{each.kernel}, {line}"), overflow="fold"), _INDENT))
        for at, sentence in enumerate(each.sentences()):
            console.print(Padding.indent(Text(printable(sentence), "red" if at else "dim"), 3 * _INDENT))
    if len(kernels) > _MOST:
        console.print(Padding.indent(Text(f"and {len(kernels) - _MOST:,} kernels more"), _INDENT))
