"""torch.cuda.set_sync_debug_mode: warnings and errors of calls that wait for the device."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True  # the first call warns


def first_use(cuda, torch_like):
    return [
        outcome(cuda, cuda.get_sync_debug_mode),
        outcome(cuda, cuda.set_sync_debug_mode, "x"),
        outcome(cuda, cuda.set_sync_debug_mode, None),
        outcome(cuda, cuda.set_sync_debug_mode, 1),
        outcome(cuda, cuda.set_sync_debug_mode, 0),
    ]


def modes(cuda, torch_like):
    seen = []
    for mode in ("warn", "error", "default", 1, 2, 0):
        cuda.set_sync_debug_mode(mode)
        seen.append(cuda.get_sync_debug_mode())
    return seen


def invalid_modes(cuda, torch_like):
    results = [outcome(cuda, cuda.set_sync_debug_mode, mode) for mode in ("x", 3, -1, 1.5, True, None)]
    return [
        {name: text for name, text in each.items() if name != "warns"} for each in results
    ], cuda.get_sync_debug_mode()


def waits(cuda, torch_like):
    """Return each call's message in both modes; none for calls that do not wait or are explicit waits."""
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
    results = {}
    cuda.synchronize()
    try:
        for name, call in calls.items():
            for mode in ("warn", "error"):
                cuda.set_sync_debug_mode(mode)
                found = outcome(cuda, call)
                messages = [text.partition(" (")[0] for _, text in found.get("warns", [])]
                results[f"{name}, {mode}"] = found.get("message", messages)
    finally:
        cuda.set_sync_debug_mode(0)
    return results
