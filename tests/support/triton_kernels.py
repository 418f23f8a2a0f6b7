"""Kernels of the tests, which Triton's decorator needs in a file."""

from __future__ import annotations

import triton
from triton import language as tl
from triton.language.extra import libdevice

CONSTANT = tl.constexpr(3)


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def add_unmasked(x, out, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at) + 1)


@triton.jit
def square_sum(v):
    return tl.sum(v * v, axis=0)


@triton.jit
def softmax_rows(x, out, columns, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    v = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + at, e / e.sum(0), mask=at < columns)


@triton.jit
def nested(x, out, block: tl.constexpr):
    half: tl.constexpr = block // 2
    total = 0.0
    for part in range(2):
        total += square_sum(tl.load(x + part * half + tl.arange(0, half)))
    tl.store(out, total + CONSTANT)


@triton.jit
def product(a, b, out, n: tl.constexpr):
    i = tl.arange(0, n)
    acc = tl.zeros((n, n), tl.float32)
    acc = tl.dot(tl.load(a + i[:, None] * n + i[None, :]), tl.load(b + i[:, None] * n + i[None, :]), acc)
    tl.store(out + i[:, None] * n + i[None, :], acc.to(out.dtype.element_ty))


@triton.jit
def _merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta, count = mean_b - mean_a, count_a + count_b
    return mean_a + delta * count_b / count, m2_a + m2_b + delta * delta * count_a * count_b / count, count


@triton.jit
def variance(x, out, n: tl.constexpr):
    v = tl.load(x + tl.arange(0, n))
    mean, m2, count = tl.reduce((v, tl.zeros_like(v), tl.full((n,), 1.0, tl.float32)), 0, _merge)
    tl.store(out, m2 / count)
    tl.store(out + 1, mean)


@triton.jit
def _decay(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def recurrence(a, b, out, n: tl.constexpr):
    i = tl.arange(0, n)
    _, h = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 0, _decay)
    tl.store(out + i, h)


@triton.jit
def mathematics(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.store(out + i, libdevice.tanh(v) + libdevice.log1p(tl.abs(v)) + tl.math.rsqrt(v * v + 1))


@triton.jit
def count(index, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(out + tl.load(index + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def through_addresses(table, out, n: tl.constexpr):
    at = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, n)
    tl.store(out + tl.program_id(0) * n + i, tl.load(at + i))


@triton.jit
def scaled(pair, out, scale, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(out + i, (tl.load(pair[0] + i) + tl.load(pair[1] + i)) * scale)


@triton.jit
def described(source, out, n: tl.constexpr):
    out.store([0, 0], source.load([0, 0]) * 2)


@triton.jit
def with_blocks(x, out, rows, columns, n: tl.constexpr):
    block = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (n, n), (1, 0))
    v = tl.load(block, boundary_check=(0, 1), padding_option="zero")
    tl.store(tl.make_block_ptr(out, (n, n), (n, 1), (0, 0), (n, n), (1, 0)), v)


@triton.jit
def with_assembly(x, out, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.inline_asm_elementwise("add.f32 $0, $1, 0f3f800000;", "=r,r", [tl.load(x + i)], tl.float32, True, 1)
    tl.store(out + i, v)


@triton.jit
def large(x, out, n: tl.constexpr, k: tl.constexpr):
    i, j = tl.arange(0, n), tl.arange(0, k)
    left = tl.load(x + i[:, None] * k + j[None, :])
    tl.store(out + i[:, None] * n + i[None, :], tl.dot(left, tl.trans(left)))


def scaled_by(factor: float):
    """Return a kernel with a variable of the function around it."""
    factor = tl.constexpr(factor)

    @triton.jit
    def scale(x, out, n: tl.constexpr):
        i = tl.arange(0, n)
        tl.store(out + i, tl.load(x + i) * factor)

    return scale


@triton.jit
def made_descriptor(x, out, n: tl.constexpr):
    row, column = tl.program_id(0) // 2 * n, tl.program_id(0) % 2 * n
    source = tl.make_tensor_descriptor(x, [2 * n, 2 * n], [2 * n, 1], [n, n])
    target = tl.make_tensor_descriptor(out, [2 * n, 2 * n], [2 * n, 1], [n, n])
    target.store([row, column], source.load([row, column]) * 2)
