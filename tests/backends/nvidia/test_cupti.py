"""Search for the library CUPTI."""

from __future__ import annotations

import pytest
from support.software_driver import lines_of

BEGIN = """
from forebay.backends.nvidia import cupti
cupti._SONAME = "libno-such.so"
"""


def output_of(program: str) -> list[str]:
    return lines_of(BEGIN + program, driver=False)


def test_library_of_the_package_is_found_and_has_the_functions():
    pytest.importorskip("nvidia", reason="nvidia-cuda-cupti is not installed")
    assert output_of("print(cupti._load()._name.rpartition('/')[2], cupti.has_cupti())") == ["libcupti.so.13 True"]


def test_absent_or_incomplete_library_is_none():
    program = """
import ctypes, cuda.pathfinder
def absent(name):
    raise RuntimeError(name)
cuda.pathfinder.load_nvidia_dynamic_lib = absent
print(cupti.has_cupti())
cupti.has_cupti.cache_clear()
cupti._SONAME = "libc.so.6"
print(cupti.has_cupti())
"""
    assert output_of(program) == ["False", "False"]
