"""Hooks by which lower layers call higher ones are set in `forebay._wiring` alone: Note [Hooks of lower layers]."""

from __future__ import annotations

import ast

import pytest

REGISTERING = {"append", "insert", "add", "register", "setdefault", "extend"}


def root_of(node: ast.expr) -> str:
    """Return the name at the beginning of an expression of attributes, or an empty text."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def hooks_set(source: str) -> list[int]:
    """Return the lines of a module that set an attribute of another module's object, or append to its list."""
    lines, ours = [], set()
    for node in ast.parse(source).body:
        match node:
            case ast.ImportFrom(str(module), names) if module.split(".")[0] == "forebay":
                ours |= {name.asname or name.name for name in names}
            case ast.Assign(targets) if {root_of(each) for each in targets if isinstance(each, ast.Attribute)} & ours:
                lines.append(node.lineno)
            case ast.Expr(ast.Call(ast.Attribute(value, attr))) if attr in REGISTERING and root_of(value) in ours:
                lines.append(node.lineno)
    return lines


def test_hooks_are_set_in_one_module(root):
    found = set()
    for path in sorted((root / "src/forebay").rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        if hooks_set(path.read_text()):
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert found == {"forebay._wiring"}


@pytest.mark.parametrize(
    "source",
    [
        "from forebay.runtime import a\na.hooks.b = print",
        "from forebay.runtime.a import A\nA.b = print",
        "from forebay.runtime.a import CALLED\nCALLED.append(print)",
    ],
)
def test_planted_hook_is_found(source):
    assert hooks_set(source) == [2]


@pytest.mark.parametrize("source", ["import a\na.b = 1", "from forebay import a\nb = []\nb.append(a)"])
def test_other_statement_is_no_hook(source):
    assert hooks_set(source) == []


def test_each_hook_says_who_calls_it(root):
    lines = (root / "src/forebay/_wiring.py").read_text().splitlines()
    for number in hooks_set("\n".join(lines)):
        before = next(line for line in reversed(lines[: number - 1]) if " = " not in line and "append" not in line)
        assert before.startswith("# "), lines[number - 1]
