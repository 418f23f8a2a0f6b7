"""NVTX ranges without a profiler."""

from __future__ import annotations

from support.on_oracle import outcome


def depth_of_ranges(cuda, torch_like):
    nvtx = cuda.nvtx
    return [nvtx.range_push("a"), nvtx.range_push("b"), nvtx.range_pop(), nvtx.range_pop(), nvtx.range_pop()]


def ranges_across_threads(cuda, torch_like):
    nvtx = cuda.nvtx
    return [nvtx.range_start("a"), nvtx.range_end(0), nvtx.range_end(99), nvtx.mark("b")]


def range_names(cuda, torch_like):
    names = ("", "ü€", b"bytes", None, 5, "\ud800")
    found = [outcome(cuda, cuda.nvtx.range_push, name).get("error") for name in names]
    for _ in names:
        cuda.nvtx.range_pop()
    return found


def invalid_range_handles(cuda, torch_like):
    return [outcome(cuda, cuda.nvtx.range_end, number).get("error") for number in (1, -1, "x", None, 1 << 64)]


def range_formatting(cuda, torch_like):
    def inside(*arguments, **named):
        with cuda.nvtx.range(*arguments, **named):
            return 5

    @cuda.nvtx.range("call")
    def decorated():
        return 6

    found = [outcome(cuda, inside, "x {}", 5), outcome(cuda, inside, "x {}"), outcome(cuda, inside, "{a}", a=4)]
    return [found, outcome(cuda, inside, 5), decorated(), decorated()]


def public_names(cuda, torch_like):
    return sorted(cuda.nvtx.__all__)
