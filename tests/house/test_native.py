"""The core does not know Python: so its locks are safe to hold with the GIL held (DESIGN.md, house rule 3)."""

from __future__ import annotations

import re

import pytest


def python_in(source: str) -> list[str]:
    return re.findall(r"\b_?Py(?!Torch\b)[A-Z_]\w*|\bPython\.h|\bpybind11\b", source)


def test_native_code_never_names_python(root):
    sources = [*root.glob("native/**/*.?pp")]
    assert sources
    assert {path.name: found for path in sources if (found := python_in(path.read_text()))} == {}


@pytest.mark.parametrize("source", ["#include <Python.h>", "PyObject* o;", "Py_DECREF(o);", "_PyFrame_Back(f)"])
def test_planted_python_is_found(source):
    assert python_in(source)
