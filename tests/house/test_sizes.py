"""Files of more than 400 lines are listed here with the reason; the Cython binding stays small."""

from __future__ import annotations

import re

MAX_LINES = 400
MAX_BINDING_LINES = 566  # of the four files together, without empty lines


_DOCSTRINGS = "most of it is the docstrings of public functions"
_ONE_FIXTURE = "all tests share one fixture"
_ONE_BINARY = "another binary would be built three more times, once for each sanitizer"

LONG_FILES = {
    "dev.py": "it must run before anything is installed",
    "native/queue/worker.cpp": "the thread's side and the callers' side share private state",
    "native/tests/test_expandable.cpp": _ONE_BINARY,
    "native/tests/test_pool.cpp": _ONE_BINARY,
    "native/tests/test_worker.cpp": _ONE_BINARY,
    "src/forebay/backends/common/capture_recorder.py": "vendors use it, so every method documents its parameters",
    "src/forebay/backends/metal/queue.py": "one lock and one list keep the order of all steps",
    "src/forebay/backends/nvidia/_stream.pyx": "an extension module cannot share C++ classes with another one",
    "src/forebay/cuda/comm.py": _DOCSTRINGS,
    "src/forebay/cuda/nccl.py": _DOCSTRINGS,
    "src/forebay/cuda/streams.py": _DOCSTRINGS,
    "src/forebay/cuda/tunable.py": _DOCSTRINGS,
    "src/forebay/memory.py": _DOCSTRINGS,
    "src/forebay/names/memory_blocks.py": _DOCSTRINGS,
    "src/forebay/names/memory_history.py": _DOCSTRINGS,
    "src/forebay/names/memory_statistics.py": _DOCSTRINGS,
    "src/forebay/runtime/allocator/caching_allocator.py": "nearly all methods use its tables",
    "src/forebay/runtime/devices/open_device.py": "one lock guards the tables, and all that changes them",
    "src/forebay/runtime/graphs/graph.py": _DOCSTRINGS,
    "src/forebay/runtime/random/generator.py": _DOCSTRINGS,
    "src/forebay/runtime/streams/stream.py": _DOCSTRINGS,
    "src/forebay/runtime/tensors/creation.py": _DOCSTRINGS,
    "src/forebay/runtime/memory/transfer.py": "the branches of one execution share the streams and what they keep",
    "src/forebay/runtime/tensors/tensor.py": "PyTorch's class has many methods",
    "src/forebay/runtime/tensors/view_methods.py": _DOCSTRINGS,
    "src/forebay/simulate/device.py": _DOCSTRINGS,
    "tests/data/settings_texts.py": "one text in each line",
    "tests/native/test_pool.py": "one class with many methods",
    "tests/observe/monitor/test_endpoint.py": "these are the states of one thread",
    "tests/process/test_sharing.py": "each test consists of the programs of two processes",
    "tests/runtime/allocator/test_expandable_segments.py": _ONE_FIXTURE,
    "tests/runtime/allocator/test_segment_allocator.py": _ONE_FIXTURE,
    "tests/runtime/memory/test_ipc_memory.py": "handles are invalid in many ways, each with its own text",
    "tests/runtime/pinned/test_pinned_allocator.py": _ONE_FIXTURE,
    "tests/support/differential.py": "the steps of a program share what they leave",
    "tests/softmetal_tests/test_rules.py": "one table with a scene for each rule",
}


def has_many_lines(source: str) -> bool:
    return len(source.splitlines()) > MAX_LINES


def test_long_files_are_listed_with_the_reason(root):
    folders = ("src", "tests", "benchmarks", "examples", "tools")
    patterns = ("*.py", "native/**/*.?pp", "src/**/*.pyx", *(f"{folder}/**/*.py" for folder in folders))
    sources = {path.relative_to(root).as_posix(): path for pattern in patterns for path in root.glob(pattern)}
    assert {name for name, path in sources.items() if has_many_lines(path.read_text())} == LONG_FILES.keys()


def test_reasons_for_long_files_are_not_in_their_docstrings(root):
    said = re.compile(r"\b[Oo]ver\s+(?://\s+)?400\s+lines")
    assert [name for name in LONG_FILES if said.search((root / name).read_text())] == []


def test_core_binding_stays_small(root):
    binding = {
        path.name: len([line for line in path.read_text().splitlines() if line.strip()])
        for path in (root / "src/forebay").glob("_*.p[yx][xi]")
    }
    binding.pop("_core.pyi", None)
    assert binding.keys() == {"_core.pyx", "_queue.pxi", "_numpy_hook.pxi", "_arena_meter.pxi"}
    assert sum(binding.values()) < MAX_BINDING_LINES  # code that is not binding belongs in native/, a .pxd or Python


def test_planted_long_file_is_found():
    assert has_many_lines("x = 1\n" * 401)
    assert not has_many_lines("x = 1\n" * 400)
