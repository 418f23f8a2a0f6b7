"""MSL is compiled for the CPU: the language, its errors, and the numbers of its functions."""

from __future__ import annotations

import struct

import pytest

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def compiled(metal, source, options=None):
    library, error = metal.device.newLibraryWithSource_options_error_(HEADER + source, options, None)
    assert error is None, error.localizedDescription()
    return library


def run(metal, source, count=1, name="f", group=None, data=None, nbytes=256, **arguments):
    """Execute a kernel, whose argument 0 is a buffer, and return the buffer."""
    function = compiled(metal, source).newFunctionWithName_(name)
    pipeline, _ = metal.device.newComputePipelineStateWithFunction_error_(function, None)
    out, commands = metal.buffer(nbytes), metal.queue.commandBuffer()
    if data:
        metal.values(out, "B")[: len(data)] = data
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(out, 0, 0)
    for index, value in arguments.items():
        encoder.setBytes_length_atIndex_(value, len(value), int(index.removeprefix("at")))
    grid = count if isinstance(count, tuple) else (count, 1, 1)
    encoder.dispatchThreads_threadsPerThreadgroup_(grid, group or (min(grid[0], 32), 1, 1))
    encoder.endEncoding()
    error = metal.done(commands)
    assert error is None, error.localizedDescription()
    return out


def floats(metal, expressions, header=""):
    """Return the values of expressions in MSL."""
    lines = "".join(f"o[{place}] = {text};\n" for place, text in enumerate(expressions))
    out = run(metal, f"{header}kernel void f(device float* o [[buffer(0)]]) {{ {lines} }}")
    return list(metal.values(out, "f"))[: len(expressions)]


def test_grid_in_three_dimensions_with_partial_groups(metal):
    source = """kernel void f(device uint* o [[buffer(0)]], uint3 p [[thread_position_in_grid]],
        uint3 n [[threads_per_grid]], uint3 s [[threads_per_threadgroup]], uint3 g [[threadgroup_position_in_grid]],
        ushort2 l [[thread_position_in_threadgroup]], uint i [[thread_index_in_threadgroup]]) {
      o[(p.z * n.y + p.y) * n.x + p.x] = p.x + 10 * p.y + 100 * p.z + 1000 * s.x + 10000 * g.x + 100000 * l.y
                                         + 1000000 * i;
    }"""
    out = metal.values(run(metal, source, (3, 2, 2), group=(2, 2, 1)))
    expected = []
    for z in range(2):
        for y in range(2):
            for x in range(3):
                width = 2 if x < 2 else 1
                index = y * width + x % 2
                expected.append(x + 10 * y + 100 * z + 1000 * width + 10000 * (x // 2) + 100000 * y + 1000000 * index)
    assert list(out)[:12] == expected


def test_arguments_without_indices_are_numbered(metal):
    source = "kernel void f(device uint* o, constant uint2& v, uint i [[thread_position_in_grid]]) { o[i] = v.y + i; }"
    assert list(metal.values(run(metal, source, 2, at1=struct.pack("2I", 1, 7))))[:2] == [7, 8]


def test_templates_with_host_names(metal):
    source = """
    template <typename T> kernel void fill(device T* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      o[i] = T(1.5);
    }
    template [[host_name("fill_float")]] [[kernel]] void fill<float>(device float*, uint);
    template [[host_name("fill_uint")]] kernel void fill<uint>(device uint* o [[buffer(0)]],
                                                               uint i [[thread_position_in_grid]]);
    typedef decltype(fill<half>) fill_t;
    template [[host_name("fill_half")]] [[kernel]] fill_t fill<half>;
    [[kernel]] void g(device uint* o) { *o = 5; }"""
    assert set(compiled(metal, source).functionNames()) == {"fill_float", "fill_uint", "fill_half", "g"}
    assert metal.values(run(metal, source, name="fill_float"), "f")[0] == 1.5
    assert metal.values(run(metal, source, name="fill_half"), "H")[0] == 0x3E00
    assert metal.values(run(metal, source, name="g"))[0] == 5


def test_macros_and_options(metal):
    options = metal.Metal.MTLCompileOptions.new()
    options.setPreprocessorMacros_({"VALUE": 3})
    assert compiled(metal, "kernel void f(device int* o) { *o = VALUE; }", options) is not None
    assert floats(metal, ["VERSION"], "#if __METAL_VERSION__ >= 300\n#define VERSION 3\n#endif\n") == [3]


def test_literals_without_a_suffix_are_float(metal):
    assert floats(metal, ["sizeof(1.0)", "1.0h + 0.5", "sizeof(1e3)", "0x1p-3", "1.e2"]) == [4, 1.5, 4, 0.125, 100]


def test_constants_and_functions_of_a_program(metal):
    header = """constant uint table[] = {3, 1, 4};
    static inline float twice(thread float& x) { x *= 2; return x; }
    template <typename T> T first(const device T* p) { return p[0]; }
    struct Pair { packed_float3 a; float b; };"""
    out = floats(metal, ["table[2]", "[&] { float x = 4; return twice(x); }()", "sizeof(Pair)"], header)
    assert out == [4, 8, 16]


def test_threadgroup_memory_and_barriers(metal):
    source = """kernel void f(device uint* o [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                              uint n [[threads_per_threadgroup]]) {
      threadgroup uint shared[64];
      shared[i] = i;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup uint* place = shared + (n - 1 - i);
      o[i] = *place;
    }"""
    assert list(metal.values(run(metal, source, 40, group=(40, 1, 1))))[:40] == list(range(39, -1, -1))


def test_exchanges_in_simd_groups(metal):
    source = """kernel void f(device uint* o [[buffer(0)]], uint i [[thread_position_in_grid]],
        uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]]) {
      if (i == 0) { o[48] = simd_sum(i); } else { uint s = simd_sum(i); if (lane == 1) o[48 + 1 + group] = s; }
      o[i] = simd_shuffle_down(i, 1) + 100 * simd_shuffle_xor(i, 1) + 10000 * simd_max(i);
    }"""
    out = list(metal.values(run(metal, source, 48, group=(48, 1, 1))))
    assert out[48:51] == [sum(range(32)), sum(range(32)), sum(range(32, 48))]
    assert out[:2] == [1 + 100 + 310000, 2 + 310000]
    assert out[33] == 34 + 3200 + 470000


def test_atomics(metal):
    source = """kernel void f(device atomic_uint* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      atomic_fetch_add_explicit(&o[0], i, memory_order_relaxed);
      atomic_fetch_max_explicit(&o[1], i, memory_order_relaxed);
      atomic_fetch_or_explicit(o + 2, 1u << i, memory_order_relaxed);
      uint expected = 0;
      if (atomic_compare_exchange_weak_explicit(o + 3, &expected, 9u, memory_order_relaxed, memory_order_relaxed))
        atomic_store_explicit(o + 4, atomic_exchange_explicit(o + 3, 8u, memory_order_relaxed), memory_order_relaxed);
    }"""
    assert list(metal.values(run(metal, source, 8)))[:5] == [28, 7, 255, 8, 9]


def test_vectors(metal):
    header = "static float4 v() { return float4(1, 2, 3, 4); }\n"
    expressions = [
        *("float2(v().xy).y", "float2(v().zw).x", "float4(v().wzyx).x", "dot(v(), v())"),
        *("(v() * 2 + float4(1)).w", "(uint4(5, 6, 7, 8) >> 1).w", "sizeof(float3)", "float3(float2(1, 2), 3).z"),
        *("any(v() > 3) ? 1 : 0", "all(v() > 3) ? 1 : 0", "select(v(), -v(), v() > 2.5).z", "max(v(), float4(2.5)).x"),
        *("as_type<float>(as_type<uint>(2.5))", "float(as_type<half>(ushort(0x3c00)))", "float4(int4(-1))[2]"),
    ]
    expected = [2, 3, 4, 30, 9, 4, 16, 3, 1, 0, -3, 2.5, 2.5, 1, -1]
    assert floats(metal, expressions, header) == expected


def test_functions_of_integers(metal):
    source = """kernel void f(device ulong* o [[buffer(0)]]) {
      o[0] = mulhi(0xD2511F53u, 0x87654321u);
      o[1] = mulhi(0xD2511F5387654321ul, 0x123456789ABCDEF0ul);
      o[2] = popcount(0xF0F0u) + clz(1u) + ctz(8u);
      o[3] = rotate(0x80000001u, 4u);
      o[4] = extract_bits(0xABCDu, 4, 8);
      o[5] = reverse_bits(1u);
    }"""
    first, second = 0xD2511F53 * 0x87654321 >> 32, 0xD2511F5387654321 * 0x123456789ABCDEF0 >> 64
    expected = [first, second, 8 + 31 + 3, 0x18, 0xBC, 1 << 31]
    assert list(metal.values(run(metal, source), "Q"))[:6] == expected


def test_functions_of_floats(metal):
    found = floats(
        metal,
        [
            *("precise::log(2.0)", "sqrt(2.0)", "precise::sin(1.0)", "cos(1.0)", "exp(1.0)", "fma(2.0, 3.0, 1.0)"),
            *("min(1.0, 2.0)", "clamp(5, 1, 3)", "abs(-2)", "floor(-1.5)", "rint(2.5)", "isnan(NAN) ? 1 : 0"),
            *("mix(1.0, 3.0, 0.5)", "fast::divide(1.0, 4.0)", "rsqrt(4.0)", "M_PI_F", "pow(2.0, 10.0)", "sign(-3.0)"),
        ],
    )
    expected = [
        *(0.6931471805599453, 1.4142135623730951, 0.8414709848078965, 0.5403023058681398, 2.718281828459045, 7),
        *(1, 3, 2, -2, 2, 1, 2, 0.25, 0.5, 3.141592653589793, 1024, -1),
    ]
    assert found == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize("value", [0.0, 1.0, 65504.0, 65520.0, 5.96e-8, 2.98e-8, 6.1e-5, 1.0005, -0.1, float("inf")])
def test_half_rounds_as_ieee(metal, value):
    source = "kernel void f(device half* o [[buffer(0)]], constant float& v [[buffer(1)]]) { o[0] = half(v); }"
    rounded = struct.unpack("f", struct.pack("f", value))[0]
    found = metal.values(run(metal, source, at1=struct.pack("f", value)), "H")[0]
    try:
        expected = struct.unpack("H", struct.pack("e", rounded))[0]
    except OverflowError:
        expected = 0x7C00
    assert found == expected


def test_bfloat(metal):
    source = "kernel void f(device bfloat* o [[buffer(0)]]) { o[0] = bfloat(1.00390625); o[1] = bfloat(3.0) * 2; }"
    assert list(metal.values(run(metal, source), "H"))[:2] == [0x3F80, 0x40C0]


def test_reflection_of_arguments(metal):
    source = """kernel void f(device const float4* x [[buffer(2)]], constant uint& n [[buffer(3)]],
                              threadgroup half* t [[threadgroup(1)]], uint i [[thread_position_in_grid]]) {}"""
    function = compiled(metal, source).newFunctionWithName_("f")
    create = metal.device.newComputePipelineStateWithFunction_options_reflection_error_
    pipeline, reflection, error = create(function, metal.Metal.MTLPipelineOptionBindingInfo, None, None)
    assert (pipeline.maxTotalThreadsPerThreadgroup(), pipeline.threadExecutionWidth(), error) == (1024, 32, None)
    found = [
        (each.name(), each.index(), each.type(), each.access(), each.bufferDataSize()) for each in reflection.bindings()
    ]
    assert found == [("x", 2, 0, 0, 16), ("n", 3, 0, 0, 4), ("t", 1, 1, 1, 2)]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("kernel void f(device uint* o) { o[0] = missing; }", "program_source:3:.*missing"),
        ("\nkernel void f(device uint* o) { o[0] = ; }", "program_source:4:"),
        ("kernel void f(device double* o) { }", "program_source:3:.*'double'"),
        ("kernel void f(uint* o) { }", "address space"),
        ("void g(float* x) { }", "address space"),
        ("kernel int f() { return 1; }", "void return type"),
        ("kernel void f() { throw 1; }", "exceptions"),
        ("kernel void f(device uint* o) { delete o; }", "dynamic memory"),
        ("#include <vector>\nkernel void f() { }", "vector"),
        ("kernel void f() { std::swap; }", "standard library"),
        ("kernel void f(device uint* o [[buffer(0)]], uint i) { }", "'i'"),
        ("kernel void f(device uint* o [[buffer(0)]) { }", "error"),
    ],
)
def test_errors_of_the_compiler(metal, source, text):
    library, error = metal.device.newLibraryWithSource_options_error_(HEADER + source, None, None)
    assert library is None
    assert (error.domain(), error.code()) == ("MTLLibraryErrorDomain", metal.Metal.MTLLibraryErrorCompileFailure)
    import re

    assert re.search(text, error.localizedDescription()), error.localizedDescription()


def test_function_that_does_not_exist(metal):
    assert compiled(metal, "kernel void f() {}").newFunctionWithName_("g") is None
