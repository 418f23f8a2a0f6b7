"""Kernels in the manner of Triton's tutorials: addition, softmax, products, normalization with locks, attention."""

from __future__ import annotations

import torch
import triton
from torch.nn import functional
from triton import language as tl

from packages.program import mean_of_squares, program


def drawn(place: str, *shape: int) -> torch.Tensor:
    """Return normally distributed numbers, which are equal on all devices."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(place)


@triton.jit
def _add(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@program("Triton kernel, addition", needs=("triton",))
def addition(place: str) -> torch.Tensor:
    x, y = drawn(place, 5000), drawn(place, 50, 100).view(-1)
    if place == "cpu":
        return mean_of_squares(x + y)
    out = torch.empty_like(x)
    _add[lambda meta: (triton.cdiv(5000, meta["block"]),)](x, y, out, 5000, block=1024)
    return mean_of_squares(out)


@triton.jit
def _softmax(x, out, stride, rows, columns, block: tl.constexpr, stages: tl.constexpr):
    at = tl.arange(0, block)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        v = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * stride + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@program("Triton kernel, softmax by resident programs", needs=("triton",))
def softmax(place: str) -> torch.Tensor:
    x = drawn(place, 100, 200)
    if place == "cpu":
        return mean_of_squares(x.softmax(1)) * 1e4
    out = torch.empty_like(x)
    kernel = _softmax.warmup(x, out, 200, 100, 200, block=256, stages=2, num_warps=4, grid=(1,))
    kernel._init_handles()  # noqa: SLF001 -- as Triton's tutorial, to know the registers
    card = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    resident = card["max_num_regs"] // (kernel.n_regs * card["warpSize"] * 4)
    programs = min(card["multiprocessor_count"] * resident, 100)
    _softmax[(programs,)](x, out, 200, 100, 200, block=256, stages=2, num_warps=4)
    return mean_of_squares(out) * 1e4


@triton.autotune(
    [
        triton.Config({"M": 64, "N": 64, "K": 32, "GROUP": 4}, num_warps=4),
        triton.Config({"M": 32, "N": 64, "K": 32, "GROUP": 4}),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def _product(a, b, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    program = tl.program_id(0)
    wide = GROUP * tl.cdiv(n, N)
    first = program // wide * GROUP
    rows_of_group = min(tl.cdiv(m, M) - first, GROUP)
    row, column = first + program % wide % rows_of_group, program % wide // rows_of_group
    i, j, q = (row * M + tl.arange(0, M)) % m, (column * N + tl.arange(0, N)) % n, tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for at in range(tl.cdiv(k, K)):
        inside = q < k - at * K
        left = tl.load(a + i[:, None] * k + (at * K + q)[None, :], mask=inside[None, :], other=0.0)
        right = tl.load(b + (at * K + q)[:, None] * n + j[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(left, right, total)
    i, j = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    tl.store(out + i[:, None] * n + j[None, :], total.to(tl.float16), mask=(i[:, None] < m) & (j[None, :] < n))


@program("Triton kernel, autotuned product", needs=("triton",))
def product(place: str) -> torch.Tensor:
    a, b = drawn(place, 100, 72).half(), drawn(place, 72, 130).half()
    if place == "cpu":
        return mean_of_squares(a @ b)
    out = torch.empty(100, 130, device=place, dtype=torch.float16)
    _product[lambda meta: (triton.cdiv(100, meta["M"]) * triton.cdiv(130, meta["N"]),)](a, b, out, 100, 130, 72)
    return mean_of_squares(out)


@triton.jit
def _norm(x, weight, out, means, deviations, n, eps, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / n
    centred = tl.where(at < n, v - mean, 0.0)
    deviation = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    tl.store(means + row, mean)
    tl.store(deviations + row, deviation)
    tl.store(out + row * n + at, centred * deviation * tl.load(weight + at, mask=at < n), mask=at < n)


@triton.jit
def _norm_backward(
    gradient, x, weight, means, deviations, of_x, of_weight, locks, n, groups: tl.constexpr, block: tl.constexpr
):
    row, at = tl.program_id(0), tl.arange(0, block)
    inside, group = at < n, row % groups
    g = tl.load(gradient + row * n + at, mask=inside, other=0.0)
    unit = (tl.load(x + row * n + at, mask=inside, other=0.0) - tl.load(means + row)) * tl.load(deviations + row)
    unit = tl.where(inside, unit, 0.0)
    scaled = g * tl.load(weight + at, mask=inside, other=0.0)
    along, mean = tl.sum(unit * scaled, axis=0) / n, tl.sum(scaled, axis=0) / n
    tl.store(of_x + row * n + at, (scaled - (unit * along + mean)) * tl.load(deviations + row), mask=inside)
    part = of_weight + group * n + at
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    tl.store(part, tl.load(part, mask=inside) + g * unit, mask=inside)
    tl.atomic_xchg(locks + group, 0)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        rows, n = x.shape
        out, (means, deviations) = torch.empty_like(x), torch.empty(2, rows, device=x.device)
        _norm[(rows,)](x, weight, out, means, deviations, n, 1e-5, block=triton.next_power_of_2(n))
        ctx.save_for_backward(x, weight, means, deviations)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, means, deviations = ctx.saved_tensors
        rows, n = x.shape
        of_x, parts = torch.empty_like(x), torch.zeros(4, n, device=x.device)
        locks = torch.zeros(4, device=x.device, dtype=torch.int32)
        _norm_backward[(rows,)](
            gradient.contiguous(), x, weight, means, deviations, of_x, parts, locks, n, groups=4,
            block=triton.next_power_of_2(n),
        )  # fmt: skip
        return of_x, parts.sum(0)


@program("Triton kernel, normalization with locks", needs=("triton",))
def normalization(place: str) -> torch.Tensor:
    x, weight = drawn(place, 20, 50).requires_grad_(), drawn(place, 50).requires_grad_()
    found = functional.layer_norm(x, (50,), weight) if place == "cpu" else _Norm.apply(x, weight)
    (found * drawn(place, 20, 50).cos()).square().mean().backward()
    return mean_of_squares(found).detach() + mean_of_squares(x.grad) * 1e4 + mean_of_squares(weight.grad) * 1e4


@triton.jit
def _attention(query, key, value, out, steps, scale, size: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    begin, head = tl.program_id(0) * M, tl.program_id(1) * steps * size
    i, d = begin + tl.arange(0, M), tl.arange(0, size)
    q = tl.load(query + head + i[:, None] * size + d[None, :])
    most = tl.full((M,), -float("inf"), tl.float32)
    total, result = tl.zeros((M,), tl.float32), tl.zeros((M, size), tl.float32)
    for first in range(0, begin + M, N):
        j = first + tl.arange(0, N)
        scores = tl.dot(q, tl.trans(tl.load(key + head + j[:, None] * size + d[None, :]))) * scale
        scores = tl.where(i[:, None] >= j[None, :], scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        powers, shrink = tl.exp2(scores - new[:, None]), tl.exp2(most - new)
        total = total * shrink + tl.sum(powers, 1)
        values = tl.load(value + head + j[:, None] * size + d[None, :])
        result = result * shrink[:, None] + tl.dot(powers.to(values.dtype), values)
        most = new
    tl.store(out + head + i[:, None] * size + d[None, :], (result / total[:, None]).to(out.dtype.element_ty))


@program("Triton kernel, fused attention", needs=("triton",))
def attention(place: str) -> torch.Tensor:
    query, key, value = (drawn(place, 2, 4, 64 + at, 32)[:, :, :64].contiguous().bfloat16() for at in range(3))
    if place == "cpu":
        found = functional.scaled_dot_product_attention(
            *(each.float() for each in (query, key, value)), is_causal=True
        )  # fmt: skip
        return mean_of_squares(found)
    out = torch.empty_like(query)
    _attention[(2, 8)](query, key, value, out, 64, 32**-0.5 * 1.4426950408889634, size=32, M=32, N=32)
    return mean_of_squares(out)
