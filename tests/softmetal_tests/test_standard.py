"""Clang parses translated MSL as strict C++14: it finds errors, and none in the sources of the backend."""

from __future__ import annotations

import re

import pytest
from softmetal.msl import standard
from softmetal_tests.conftest import KERNELS
from support.metal_sources import LAWS, sources_of_the_backend

pytest.importorskip("clang.cindex", reason="libclang is not installed")

BEGIN = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("o[0] = missing;", "undeclared identifier 'missing'"),
        ("if constexpr (true) o[0] = 1;", "constexpr if is a C.+17 extension"),
        ("o[0] = dot(float2(1, 2), float3(1, 2, 3));", "no matching function for call to 'dot'"),
        ("float4 v = float2(1, 2);", "no viable conversion"),
    ],
)
def test_error_is_a_problem(body, text):
    (found,) = standard.problems(f"{BEGIN}kernel void f(device float* o [[buffer(0)]]) {{\n{body}\n}}")
    assert re.search(rf"program_source:4: error: .*{text}", found), found


def test_kernels_of_the_tests_have_no_problems():
    assert standard.problems(KERNELS) == []


def test_sources_of_the_backend_have_no_problems():
    texts = sources_of_the_backend()
    assert len(texts) > len(LAWS)
    assert {name: found for name, text in texts.items() if (found := standard.problems(text))} == {}
