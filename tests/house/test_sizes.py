"""A file is one idea. One of more than 400 lines says at its top why it has so many lines."""

from __future__ import annotations

import ast
import re

LONG = 400


def opening(name: str, source: str) -> str:
    """A Python file's docstring; the comment at the top of a C++ one."""
    if name.endswith(".py"):
        return ast.get_docstring(ast.parse(source)) or ""
    return re.split(r"^#", source, maxsplit=1, flags=re.MULTILINE)[0]


def unexcused(name: str, source: str) -> bool:
    return len(source.splitlines()) > LONG and "lines" not in opening(name, source)


def test_long_files_say_why(root):
    patterns = ("*.py", "src/**/*.py", "native/**/*.?pp", "tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py")
    sources = [path for pattern in patterns for path in root.glob(pattern)]
    assert [path.name for path in sources if unexcused(path.name, path.read_text())] == []


def test_the_cores_face_stays_thin(root):
    face = {
        path.name: len([line for line in path.read_text().splitlines() if line.strip()])
        for path in (root / "src/forebay").glob("_*.p[yx][xi]")
    }
    face.pop("_core.pyi", None)
    assert face.keys() == {"_core.pyx", "_queue.pxi", "_numpy_hook.pxi"}
    assert sum(face.values()) < LONG  # what is no binding has another place: native/, a .pxd, Python


def test_only_what_runs_at_every_operation_is_compiled_beside_the_core(root):
    others = {path.relative_to(root).as_posix() for path in root.glob("src/**/*.pyx")} - {"src/forebay/_core.pyx"}
    assert others == {"src/forebay/observe/tracing/_entries.pyx"}


def test_a_planted_long_file_is_found():
    assert unexcused("a.py", "x = 1\n" * 401)
    assert unexcused("a.cpp", "// A pool.\n#include <map>\n" + "// lines\n" * 400)
    assert not unexcused("a.py", '"""One table of 500 lines."""\n' + "x = 1\n" * 500)
    assert not unexcused("a.py", "x = 1\n" * 400)
