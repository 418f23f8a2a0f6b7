"""Destructors of Python code derive from Disposable: a `__del__` swallows what a signal handler raises in it."""

from __future__ import annotations

import ast

REASONS = {
    ("errors.py", "_Unraisable"): "raises on purpose: only the interpreter makes arguments of sys.unraisablehook",
}
FINALIZERS = {
    ("runtime/base/observers.py", "finalize"): "an interrupt loses an entry of a trace, and no memory",
    ("backends/metal/kernels/shaders.py", "finalize"): "unloads a library of shaders, which counts as no memory",
}


def destructors(source: str) -> list[str]:
    """Return the classes of a module that define or assign `__del__`; "" for one outside a class."""
    tree = ast.parse(source)
    owners = {id(child): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    found = []
    for node in ast.walk(tree):
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.Assign):
            names = [getattr(target, "id", getattr(target, "attr", "")) for target in node.targets]
        if "__del__" in names:
            found.append(owners.get(id(node), ""))
    return found


def finalizers(source: str) -> list[str]:
    """Return the names under which a module calls `weakref.finalize`, whose callbacks are Python code, too."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls}
    return sorted(names & {"finalize"})


def test_python_destructors_have_reasons(root):
    folder = root / "src/forebay"
    sources = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}
    assert {(name, each) for name, text in sources.items() for each in destructors(text)} == REASONS.keys()
    assert {(name, each) for name, text in sources.items() for each in finalizers(text)} == FINALIZERS.keys()


def test_planted_destructor_is_found():
    assert destructors("class A:\n    def __del__(self): pass\n") == ["A"]
    assert sorted(destructors("class A:\n    __del__ = f\n\nA.__del__ = f\n")) == ["", "A"]
    assert destructors("class A:\n    def _dispose(self): pass\n") == []
    assert finalizers("import weakref\nweakref.finalize(x, f)\n") == ["finalize"]
