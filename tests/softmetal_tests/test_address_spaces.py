"""Address spaces of MSL: wrong ones are errors, and the backend's sources have none."""

from __future__ import annotations

import re

import pytest
from softmetal.msl import address_spaces
from softmetal_tests.conftest import KERNELS
from support.metal_sources import LAWS, sources_of_the_backend

pytest.importorskip("clang.cindex", reason="libclang is not installed")

BEGIN = """#include <metal_stdlib>
using namespace metal;
struct Pair { float a, b; float sum() const { return a + b; } };
inline float first(thread const float* p) { return p[0]; }
template <typename T> T second(device const T* p) { return p[1]; }
"""


def checked(text):
    return address_spaces.problems(BEGIN + text)


def kernel(body):
    return (
        "kernel void f(device float* o [[buffer(0)]], constant Pair& s [[buffer(1)]], constant float* c [[buffer(2)]],"
        f"\n uint i [[thread_position_in_grid]]) {{\n{body}\n}}"
    )


@pytest.mark.parametrize(
    "body",
    [
        "float x[2] = {1, 2}; o[i] = first(x) + second(o) + s.a;",
        "thread float* p = nullptr; device float* q = o + 1; *q = 1.5;",
        "threadgroup float shared[32]; shared[i] = o[i]; threadgroup float* p = shared; o[i] = p[0];",
        "float4 v = float4(float2(1, 2), 3.0, o[0]); o[i] = dot(v.xy, v.zw) + float3(v.x).z;",
        "half h = 1.0h; o[i] = h * half(2) + as_type<float>(uint(3));",
        "device atomic_uint* a = (device atomic_uint*)o; atomic_fetch_add_explicit(a, 1u, memory_order_relaxed);",
        "Pair copy = s; o[i] = copy.sum() + simd_sum(o[i]); threadgroup_barrier(mem_flags::mem_device);",
    ],
)
def test_correct_source_has_no_problems(body):
    assert checked(kernel(body)) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("o[i] = first(o);", "__global.*__private"),
        ("o[i] = second(c);", "no matching function.*'second'"),
        ("c[0] = 1.0;", "not assignable"),
        ("s.a = 1.0;", "not assignable"),
        ("threadgroup float t[4];\nthread float* p = t;", "__private.*__local"),
        ("device float* p = c;", "__global.*__constant"),
        ("device const Pair* p = &s;", "__global.*__constant"),
        ("float x; device float& r = x;", "__global"),
    ],
)
def test_wrong_address_space_is_a_problem(body, text):
    found = checked(kernel(body))
    assert len(found) == 1
    assert re.search(text, found[0])
    line = len(BEGIN.splitlines()) + 2 + len(body.splitlines())
    assert found[0].startswith(f"program_source:{line}:")


def test_kernels_of_the_tests_have_no_problems():
    assert address_spaces.problems(KERNELS) == []


def test_compiler_reports_problems_if_it_is_to_be_strict(metal, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_ADDRESS_SPACES", "1")
    create = metal.device.newLibraryWithSource_options_error_
    library, error = create(BEGIN + kernel("o[i] = first(o);"), None, None)
    assert library is None
    assert "program_source:8:" in error.localizedDescription()
    assert create(BEGIN + kernel("o[i] = 1;"), None, None)[1] is None


def test_sources_of_the_backend_have_no_problems():
    texts = sources_of_the_backend()
    assert len(texts) > len(LAWS)
    assert {name: found for name, text in texts.items() if (found := address_spaces.problems(text))} == {}
