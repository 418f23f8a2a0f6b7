"""Calls that wait for the device, for who asked to hear of them."""

from __future__ import annotations

from support.on_oracle import outcome


def modes(cuda, torch_like):
    seen = []
    for mode in ("warn", "error", "default", 1, 2, 0):
        cuda.set_sync_debug_mode(mode)
        seen.append(cuda.get_sync_debug_mode())
    return seen


def modes_that_are_none(cuda, torch_like):
    said = [outcome(cuda, cuda.set_sync_debug_mode, mode) for mode in ("x", 3, -1, 1.5, True, None)]
    return [{name: text for name, text in each.items() if name != "warns"} for each in said], cuda.get_sync_debug_mode()


def waits(cuda, torch_like):
    """Each call's first word in either mode; those that say nothing wait for nobody, or are waited for on purpose."""
    stream, event = cuda.Stream(), cuda.Event()
    event.record(stream)
    there = torch_like.zeros(4, device="cuda")
    here = there.cpu()
    numbers = [1.0, 2.0]
    calls = {
        "device": cuda.synchronize,
        "stream": stream.synchronize,
        "event": event.synchronize,
        "item": there[0].item,
        "list": there.tolist,
        "made from numbers": lambda: torch_like.tensor(numbers, device="cuda"),
        "to the host": there.cpu,
        "to the host without blocking": lambda: there.to(here.device, non_blocking=True),
        "from the host": lambda: there.copy_(here),
        "from the host without blocking": lambda: there.copy_(here, non_blocking=True),
        "one element from the host": lambda: there[:1].copy_(here[:1]),
        "to the other device": lambda: there.to("cuda:1"),
        "within the host": here.clone,
        "cache": cuda.empty_cache,
        "asking": lambda: (event.query(), stream.query()),
        "on the device": lambda: there.copy_(there.clone()),
        "free memory": cuda.mem_get_info,
    }
    said = {}
    cuda.synchronize()
    try:
        for name, call in calls.items():
            for mode in ("warn", "error"):
                cuda.set_sync_debug_mode(mode)
                found = outcome(cuda, call)
                words = [text.partition(" (")[0] for _, text in found.get("warns", [])]
                said[f"{name}, {mode}"] = found.get("says", words)
    finally:
        cuda.set_sync_debug_mode(0)
    return said
