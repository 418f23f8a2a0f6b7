"""Lists of names in a module: `__all__`, and what a package imports from one of its modules.

tools/write_names.py adds the functions that it writes, and removes those that it no longer writes. Lists stay sorted
and formatted as ruff does it, and a list that is right is not touched.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

__all__ = ["with_imported", "with_listed"]

WIDTH = 120
INDENT = "    "


def with_listed(text: str, added: Iterable[str], removed: Iterable[str] = ()) -> str:
    """Return the text of a module with other names in `__all__`. Raises LookupError if it has no such list."""
    for node in ast.parse(text).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List(elts=elements) as found):
                names = [ast.literal_eval(each) for each in elements]
                changed = _changed(names, added, removed, _order_in_all)
                if changed == names:
                    return text
                return _replaced(text, found, "[", [f'"{name}"' for name in changed], "]")
    raise LookupError("the list `__all__`")


def with_imported(text: str, module: str, added: Iterable[str], removed: Iterable[str] = ()) -> str:
    """Return the text of a package that imports other names of a module, if it imports any: else LookupError."""
    for node in ast.walk(ast.parse(text)):
        # An import with another name is a statement of its own.
        if isinstance(node, ast.ImportFrom) and node.module == module and not any(each.asname for each in node.names):
            names = [each.name for each in node.names]
            changed = _changed(names, added, removed, _order_of_imports)
            if changed == names:
                return text
            if not changed:
                raise LookupError(f"no longer the line `from {module} import …`")
            several = node.end_lineno != node.lineno
            one = f"from {module} import {', '.join(changed)}"
            if not several and node.col_offset + len(one) <= WIDTH:
                return _spliced(text, node, one)
            return _replaced(text, node, f"from {module} import (", changed, ")")
    raise LookupError(f"the line `from {module} import …`")


def _changed(
    names: list[str], added: Iterable[str], removed: Iterable[str], order: Callable[[str], tuple[int, str]]
) -> list[str]:
    """Return the names without some and with others, each of which is put before the first that is to follow it."""
    gone = {*removed}
    changed = [name for name in names if name not in gone]
    for name in added:
        if name not in changed:
            place = next((at for at, each in enumerate(changed) if order(each) > order(name)), len(changed))
            changed.insert(place, name)
    return changed


def _kind(name: str) -> int:
    """Return the place of constants, then classes, then other names."""
    return 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2


def _order_in_all(name: str) -> tuple[int, str]:
    return _kind(name), name


def _order_of_imports(name: str) -> tuple[int, str]:
    return _kind(name), name.lower()


def _replaced(text: str, node: ast.stmt | ast.expr, begin: str, items: list[str], end: str) -> str:
    """Return the text with these items in place of a node: in one line if it was one and is short, else one a line."""
    line = text.split("\n")[node.lineno - 1]
    one = f"{begin}{', '.join(items)}{end}"
    if isinstance(node, ast.List) and node.lineno == node.end_lineno and node.col_offset + len(one) <= WIDTH:
        return _spliced(text, node, one)
    outside = line[: len(line) - len(line.lstrip())]
    return _spliced(text, node, "\n".join([begin, *(f"{outside}{INDENT}{item}," for item in items), outside + end]))


def _spliced(text: str, node: ast.stmt | ast.expr, new: str) -> str:
    """Return the text with other characters in place of a node. Comments inside would be lost: they are refused."""
    old = ast.get_source_segment(text, node) or ""
    if "#" in old:
        raise LookupError(f"line {node.lineno} without a comment inside")
    start = sum(len(line) + 1 for line in text.split("\n")[: node.lineno - 1]) + node.col_offset
    return text[:start] + new + text[start + len(old) :]
