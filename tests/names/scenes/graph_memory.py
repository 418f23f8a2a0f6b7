"""CUDA graphs: memory that several streams use during a capture."""

from __future__ import annotations

MIB = 1 << 20


def blocks(cuda):
    stats = cuda.memory_stats()
    return [stats.get(f"{name}.all.current", 0) for name in ("active", "allocation")]


def empty(torch_like, stream, nbytes=4 * MIB):
    with torch_like.cuda.stream(stream):
        return torch_like.empty(nbytes, dtype=torch_like.uint8, device="cuda")


def block_of_a_capture_is_not_reused_before_its_end(cuda, torch_like):
    """A freed block that another stream used stays pending, also after the streams are joined."""
    capturing, side, graph, steps = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph(), []
    with cuda.stream(capturing):
        graph.capture_begin()
        used = empty(torch_like, capturing)
        used.zero_()
        side.wait_stream(capturing)
        with cuda.stream(side):
            used.zero_()
            used.record_stream(side)
        address = used.data_ptr()
        del used
        steps.append(blocks(cuda))
        first = empty(torch_like, capturing)
        steps.append([first.data_ptr() == address, *blocks(cuda)])
        capturing.wait_stream(side)
        second = empty(torch_like, capturing)
        steps.append([second.data_ptr() == address, *blocks(cuda)])
        graph.capture_end()
    steps.append(blocks(cuda))
    other = empty(torch_like, cuda.current_stream())
    return [*steps, blocks(cuda), other.data_ptr() == address]


def block_of_a_capture_is_free_after_emptying_the_cache(cuda, torch_like):
    capturing, side, graph, steps = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph(), []
    with cuda.stream(capturing):
        graph.capture_begin()
        used = empty(torch_like, capturing)
        used.zero_()
        used.record_stream(side)
        del used
        graph.capture_end()
    cuda.synchronize()
    steps.append([*blocks(cuda), cuda.memory_reserved()])
    cuda.empty_cache()
    steps.append([*blocks(cuda), cuda.memory_reserved()])
    graph.reset()
    cuda.empty_cache()
    return [*steps, [*blocks(cuda), cuda.memory_reserved()]]


def other_blocks_freed_in_a_capture(cuda, torch_like):
    """Blocks from before the capture, recorded before or during it, on the captured stream or another one."""
    capturing, side, graph, results = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph(), []
    for owner in (capturing, side):
        user = side if owner is capturing else capturing
        for recorded in ("before", "during"):
            graph, steps = cuda.CUDAGraph(), []
            cuda.synchronize()
            cuda.empty_cache()
            used = empty(torch_like, owner)
            if recorded == "before":
                used.record_stream(user)
            with cuda.stream(capturing):
                graph.capture_begin()
                torch_like.empty(10, device="cuda").zero_()
                if recorded == "during":
                    used.record_stream(user)
                del used
                steps.append(blocks(cuda))
                kept = empty(torch_like, capturing)
                steps.append(blocks(cuda))
                graph.capture_end()
            steps.append(blocks(cuda))
            cuda.synchronize()
            other = empty(torch_like, cuda.current_stream())
            steps.append(blocks(cuda))
            del kept, other
            graph.reset()
            results.append(steps)
    return results


def block_freed_before_a_capture_stays_pending_in_it(cuda, torch_like):
    capturing, side, graph, steps = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph(), []
    used = empty(torch_like, capturing)
    used.record_stream(side)
    del used
    cuda.synchronize()
    with cuda.stream(capturing):
        graph.capture_begin()
        steps.append(blocks(cuda))
        kept = empty(torch_like, capturing)
        kept.zero_()
        steps.append(blocks(cuda))
        graph.capture_end()
    other = empty(torch_like, capturing)
    return [*steps, blocks(cuda), other.numel()]


def block_freed_after_a_capture(cuda, torch_like):
    capturing, side, graph, steps = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph(), []
    with cuda.stream(capturing):
        graph.capture_begin()
        used = empty(torch_like, capturing)
        used.zero_()
        used.record_stream(side)
        graph.capture_end()
    del used
    steps.append(blocks(cuda))
    cuda.synchronize()
    other = empty(torch_like, capturing)
    return [*steps, blocks(cuda), other.numel()]
