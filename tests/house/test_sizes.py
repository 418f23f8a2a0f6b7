"""Files of more than 400 lines state the reason at the top; the Cython binding stays small."""

from __future__ import annotations

import ast
import re

MAX_LINES = 400
MAX_BINDING_LINES = 476  # of the three files together, without empty lines


def opening(name: str, source: str) -> str:
    """Return the docstring of a Python file, or the comment at the top of a C++ file."""
    if name.endswith(".py"):
        return ast.get_docstring(ast.parse(source)) or ""
    return re.split(r"^#", source, maxsplit=1, flags=re.MULTILINE)[0]


def is_unexplained(name: str, source: str) -> bool:
    return len(source.splitlines()) > MAX_LINES and "lines" not in opening(name, source)


def test_long_files_state_the_reason(root):
    folders = ("src", "tests", "benchmarks", "examples", "tools")
    patterns = ("*.py", "native/**/*.?pp", *(f"{folder}/**/*.py" for folder in folders))
    sources = [path for pattern in patterns for path in root.glob(pattern)]
    assert [path.name for path in sources if is_unexplained(path.name, path.read_text())] == []


def test_core_binding_stays_small(root):
    binding = {
        path.name: len([line for line in path.read_text().splitlines() if line.strip()])
        for path in (root / "src/forebay").glob("_*.p[yx][xi]")
    }
    binding.pop("_core.pyi", None)
    assert binding.keys() == {"_core.pyx", "_queue.pxi", "_numpy_hook.pxi"}
    assert sum(binding.values()) < MAX_BINDING_LINES  # code that is not binding belongs in native/, a .pxd or Python


def test_compiled_modules_besides_the_core(root):
    others = {path.relative_to(root / "src/forebay").as_posix() for path in root.glob("src/**/*.pyx")} - {"_core.pyx"}
    assert others == {
        "backends/common/_disposal.pyx",
        "backends/common/_releases.pyx",
        "backends/common/_segments.pyx",
        "backends/nvidia/_memory.pyx",
        "backends/nvidia/_stream.pyx",
        "names/_device_context.pyx",
        "interop/_torch_callbacks.pyx",
        "interop/torch/devices/_device_guard.pyx",
        "interop/torch/processes/_process_end.pyx",
        "interop/torch/devices/_storage_owners.pyx",
        "observe/tracing/_entries.pyx",
        "runtime/allocator/_reservations.pyx",
        "runtime/devices/_thread_state.pyx",
        "runtime/memory/_dlpack.pyx",
        "runtime/pinned/_cache.pyx",
        "snapshot/formats/_history_reader.pyx",
        "snapshot/formats/_plain_pickle.pyx",
    }


def test_planted_long_file_is_found():
    assert is_unexplained("a.py", "x = 1\n" * 401)
    assert is_unexplained("a.cpp", "// A pool.\n#include <map>\n" + "// lines\n" * 400)
    assert not is_unexplained("a.py", '"""One table of 500 lines."""\n' + "x = 1\n" * 500)
    assert not is_unexplained("a.py", "x = 1\n" * 400)
