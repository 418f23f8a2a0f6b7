"""`__all__` is complete: it lists existing names, and every public name that its module defines."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NO_LIST = ("forebay.commands.cli", "forebay.commands", "forebay.__main__")  # not imported by programs


def defined_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the top-level names that a module defines rather than imports."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Assign(targets=targets):
                names = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
            case ast.AnnAssign(target=ast.Name(name), value=value) if value is not None:
                yield name
            case ast.If(test, inner, other) if "TYPE_CHECKING" not in ast.unparse(test):
                yield from defined_in(inner + other)
            case ast.Try(body=inner, orelse=other):
                yield from defined_in(inner + other)


def is_empty(tree: ast.Module) -> bool:
    return all(isinstance(s, ast.Expr) or ast.unparse(s).startswith("from __future__") for s in tree.body)


def problems(source: str, module: ModuleType) -> list[str]:
    tree = ast.parse(source)
    if is_empty(tree):
        return []
    if not hasattr(module, "__all__"):
        return [f"{module.__name__} has no __all__"]
    listed = module.__all__
    missing = [f"{module.__name__}.{name} is listed and does not exist" for name in listed if not hasattr(module, name)]
    public = {name for name in defined_in(tree.body) if not name.startswith("_")}
    unlisted = [f"{module.__name__}.{name} is public and not listed" for name in sorted(public - {*listed})]
    duplicates = [f"{module.__name__}.{name} is listed twice" for name in {*listed} if list(listed).count(name) > 1]
    return missing + unlisted + duplicates


def public_modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "src/forebay").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        private = any(part.startswith("_") for part in name.split("."))
        if not private and not any(f"{name}.".startswith(f"{skip}.") for skip in NO_LIST):
            yield name, path


@pytest.mark.parametrize(("name", "path"), [pytest.param(*found, id=found[0]) for found in public_modules()])
def test_all_lists_every_public_name(name, path):
    try:
        found = problems(path.read_text(), importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name == "triton":
            pytest.skip("triton is no requirement of the CPU builds of PyTorch")
        if error.name not in ("torch", "numba"):
            raise
        pytest.skip(f"{error.name} is not installed")
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): ...", "has no __all__"),
        ("__all__ = ['g']", "does not exist"),
        ("__all__ = []\ndef f(): ...", "f is public"),
        ("__all__ = []\nA, B = 1, 2", "A is public"),
        ("__all__ = []\nif 1:\n    class C: ...", "C is public"),
        ("__all__ = ['D', 'D']\nD: int = 1", "listed twice"),
    ],
)
def test_planted_problem_is_found(source, expected):
    module = ModuleType("planted")
    exec(source, module.__dict__)
    assert expected in problems(source, module)[0]


def test_imports_and_private_names_are_not_listed():
    module = ModuleType("planted")
    source = "__all__ = ['f']\nimport os\nfrom re import sub\n_x = 1\ny: int\ndef f(): ..."
    exec(source, module.__dict__)
    assert problems(source, module) == []
