"""Import hook for one module."""

from __future__ import annotations

import importlib
import sys

import pytest

from forebay.interop.torch.import_hook import ImportHook


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "hooked"
    folder.mkdir()
    (folder / "__init__.py").write_text("from hooked import inner\nis_ready = True\n")
    (folder / "inner.py").write_text("value = 1\n")
    (folder / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked"
    for name in [name for name in sys.modules if name.split(".")[0] == "hooked"]:
        del sys.modules[name]


@pytest.fixture
def hook():
    """Make hooks that are removed at the end, and list the modules after whose import they called their function."""
    made, imported = [], []

    def make(name):
        made.append(ImportHook(name, imported.append))
        made[-1].install()
        return made[-1]

    yield make, imported
    for each in made:
        each.remove()


@pytest.mark.parametrize("name", ["hooked", "hooked.inner"])
def test_function_is_called_after_the_module_was_executed(package, hook, name):
    make, imported = hook
    make(name)
    importlib.import_module(package)
    assert imported == [sys.modules[name]]
    assert {"hooked": "is_ready", "hooked.inner": "value"}[name] in vars(imported[0])
    assert type(imported[0].__loader__).__name__ == type(imported[0].__spec__.loader).__name__ == "SourceFileLoader"


def test_hook_that_was_removed_twice_calls_nothing(package, hook):
    make, imported = hook
    first = make(package)
    first.remove()
    first.remove()
    importlib.import_module(package)
    assert imported == []


def test_function_is_not_called_if_the_module_fails(package, hook):
    make, imported = hook
    make("hooked.broken")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("hooked.broken")
    assert imported == []


def test_missing_module_raises_its_own_error(package, hook):
    make, imported = hook
    make("hooked.missing")
    with pytest.raises(ModuleNotFoundError, match=r"hooked\.missing"):
        importlib.import_module("hooked.missing")
    assert imported == []
