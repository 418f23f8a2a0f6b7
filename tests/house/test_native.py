"""The native core does not use Python, so its locks can be taken with the GIL held (CONTRIBUTING.md, house rule 3)."""

from __future__ import annotations

import re

import pytest


def python_in(source: str) -> list[str]:
    return re.findall(r"\b_?Py(?!Torch\b)[A-Z_]\w*|\bPython\.h|\bpybind11\b", source)


def test_native_code_does_not_use_python(root):
    sources = [*root.glob("native/**/*.?pp")]
    assert sources
    assert {path.name: found for path in sources if (found := python_in(path.read_text()))} == {}


@pytest.mark.parametrize("source", ["#include <Python.h>", "PyObject* o;", "Py_DECREF(o);", "_PyFrame_Back(f)"])
def test_planted_use_of_python_is_found(source):
    assert python_in(source)


def test_modules_do_not_declare_support_for_free_threaded_python(root):
    """It was not tested there, and the tables of call stacks rely on the GIL (docs/reference/platforms.md)."""
    sources = [*root.glob("src/**/*.p[yx][xi]"), root / "setup.py"]
    assert len(sources) > 1
    declares = re.compile(r"freethreading_compatible|Py_MOD_GIL_NOT_USED")
    assert [path.name for path in sources if declares.search(path.read_text())] == []
