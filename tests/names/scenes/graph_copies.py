"""CUDA graphs: copies between the device and host memory during a capture."""

from __future__ import annotations

from support.on_oracle import outcome


def tensors(torch_like):
    pinned = {"pin_memory": True}
    return {
        "device": torch_like.zeros(8, device="cuda"),
        "columns": torch_like.zeros(8, 2, device="cuda"),
        "host": torch_like.zeros(8),
        "pinned": torch_like.zeros(8, **pinned),
        "pinned ints": torch_like.zeros(8, dtype=torch_like.int32, **pinned),
        "pinned columns": torch_like.zeros(8, 2, **pinned),
        "nothing": torch_like.zeros(0),
        "nothing on device": torch_like.zeros(0, device="cuda"),
    }


def during_capture(cuda, torch_like, call):
    """Return the outcome of a call with these tensors, whether a tensor that it returns is pinned, and of the end."""
    given, graph, found = tensors(torch_like), cuda.CUDAGraph(), []
    cuda.synchronize()
    with cuda.stream(cuda.Stream()):
        graph.capture_begin()
        torch_like.empty(10, device="cuda").zero_()
        result = outcome(cuda, lambda: found.append(call(given)))
        return [result, [each.is_pinned() for each in found], outcome(cuda, graph.capture_end)]


def copied(cuda, torch_like, to, source, late):
    return during_capture(cuda, torch_like, lambda given: given[to].copy_(given[source], non_blocking=late))


def copies_with_pinned_memory(cuda, torch_like):
    pairs = [("device", "pinned"), ("pinned", "device"), ("device", "pinned ints"), ("pinned ints", "device")]
    pairs.append(("nothing", "nothing on device"))
    return [copied(cuda, torch_like, to, source, True) for to, source in pairs]


def copies_with_other_host_memory(cuda, torch_like):
    return [
        copied(cuda, torch_like, to, source, late)
        for to, source in (("device", "host"), ("host", "device"), ("nothing", "nothing on device"))
        for late in (False, True)
    ]


def blocking_conversions(cuda, torch_like):
    pairs = (("device", "pinned ints"), ("pinned ints", "device"))
    return [copied(cuda, torch_like, to, source, False) for to, source in pairs]


def strided_copies(cuda, torch_like):
    calls = (
        lambda given: given["device"].copy_(given["pinned columns"][:, 0], non_blocking=True),
        lambda given: given["pinned columns"][:, 0].copy_(given["device"], non_blocking=True),
        lambda given: given["columns"][:, 0].copy_(given["pinned"], non_blocking=True),
        lambda given: given["columns"][:, 0].copy_(given["host"], non_blocking=True),
    )
    return [during_capture(cuda, torch_like, call) for call in calls]


def methods(cuda, torch_like):
    calls = (
        lambda given: given["device"].cpu(),
        lambda given: given["device"].to("cpu", non_blocking=True),
        lambda given: given["device"].to("cpu", torch_like.int32, non_blocking=True),
        lambda given: given["host"].cuda(),
        lambda given: given["pinned"].cuda(non_blocking=True),
        lambda given: given["pinned"].to("cuda", non_blocking=True),
        lambda given: given["device"].tolist(),
        lambda given: torch_like.tensor([1.0, 2.0], device="cuda"),
        lambda given: torch_like.tensor([1.0, 2.0], pin_memory=True),
        lambda given: given["host"].pin_memory(),
    )
    return [during_capture(cuda, torch_like, call) for call in calls]


def pinned_results_outside_a_capture(cuda, torch_like):
    given = tensors(torch_like)
    return [
        given["device"].to("cpu", non_blocking=True).is_pinned(),
        given["device"].to("cpu", torch_like.int32, non_blocking=True).is_pinned(),
        given["device"].to("cpu").is_pinned(),
        given["device"].cpu().is_pinned(),
        given["host"].to("cpu", torch_like.int32, non_blocking=True).is_pinned(),
        given["nothing on device"].to("cpu", non_blocking=True).is_pinned(),
    ]
