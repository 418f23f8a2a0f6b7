"""torch.mtia without an MTIA device."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True  # no calls may be queued before
DIFFERS = {"tensors": "forebay raises ForebayError for missing devices of all kinds and lists the existing devices"}


def first_line(cuda, call, *arguments, **named):
    """Return the outcome with the first line or sentence of the message; forebay and PyTorch add different reasons."""
    found = outcome(cuda, call, *arguments, **named)
    if "message" in found:
        line = found["message"].partition("\n")[0]
        found["message"] = line.partition(". ")[0] if line.startswith("Torch not compiled") else line
    return found


def entered(context):
    with context:
        return "entered"


PLACES = (0, -1, 1, True, None, "mtia", "mtia:0", "cpu", "cuda", "cuda:1", 1.5)


def reported_state(cuda, torch_like):
    mtia = torch_like.mtia
    results = [
        mtia.is_available(),
        mtia.device_count(),
        mtia.is_initialized(),
        mtia._is_in_bad_fork(),
        mtia._is_compiled(),
    ]
    return results, mtia.is_bf16_supported(), mtia.is_bf16_supported(False), mtia.is_current_stream_capturing()


def functions_without_device_argument(cuda, torch_like):
    mtia = torch_like.mtia
    uses = (
        "init", "_lazy_init", "synchronize", "current_device", "current_stream", "default_stream", "snapshot",
        "get_device_capability", "get_device_properties", "empty_cache", "get_rng_state", "initial_seed",
        "graph_pool_handle", "MTIAGraph",
    )  # fmt: skip
    return {use: first_line(cuda, getattr(mtia, use)) for use in uses}


def functions_with_device_argument(cuda, torch_like):
    mtia = torch_like.mtia
    uses = (
        mtia.synchronize, mtia.current_stream, mtia.default_stream, mtia.set_device, mtia.get_device_capability,
        mtia.get_device_properties,
    )  # fmt: skip
    return {use.__name__: {str(place): first_line(cuda, use, place) for place in PLACES} for use in uses}


def device_contexts(cuda, torch_like):
    mtia = torch_like.mtia
    made = {str(place): first_line(cuda, mtia.device, place) for place in PLACES}
    return made, {str(place): first_line(cuda, lambda place=place: entered(mtia.device(place))) for place in PLACES}


def device_arguments(cuda, torch_like):
    index = torch_like.mtia._utils._get_device_index
    flags = ({}, {"optional": True}, {"allow_cpu": True}, {"optional": True, "allow_cpu": True})
    return [[first_line(cuda, index, place, **flag) for flag in flags] for place in PLACES]


def stream_contexts(cuda, torch_like):
    mtia = torch_like.mtia
    return (
        first_line(cuda, mtia.stream, None),
        first_line(cuda, mtia.StreamContext, None),
        first_line(cuda, mtia.set_stream, None),
    )


def exchange_device(cuda, torch_like):
    mtia = torch_like.mtia
    return [
        first_line(cuda, use, index)
        for use in (mtia._exchange_device, mtia._maybe_exchange_device)
        for index in (-1, 0, 3)
    ]


def set_stream_by_id(cuda, torch_like):
    return first_line(cuda, torch_like.mtia._set_stream_by_id, 0, 0, 19)


def graphs(cuda, torch_like):
    mtia = torch_like.mtia
    return (
        first_line(cuda, mtia.MTIAGraph, True),
        first_line(cuda, mtia.graph, None),
        first_line(cuda, mtia.graph, None, (0, 0)),
    )


def memory(cuda, torch_like):
    mtia = torch_like.mtia
    questions = (mtia.memory_stats, mtia.memory_allocated, mtia.max_memory_allocated, mtia.reset_peak_memory_stats)
    results = [[first_line(cuda, use, place) for use in questions] for place in (None, 0, -1, 9, "cuda", "cpu", 1.5)]
    return results, [first_line(cuda, use) for use in questions]


def histories(cuda, torch_like):
    mtia = torch_like.mtia
    record = mtia.record_memory_history
    return first_line(cuda, record), first_line(cuda, record, None), first_line(cuda, record, "nonsense", "stacks", -3)


def observers(cuda, torch_like):
    attach = torch_like.mtia.attach_out_of_memory_observer
    return first_line(cuda, attach, print), first_line(cuda, attach, 3)["error"]


def seeds_are_queued(cuda, torch_like):
    mtia = torch_like.mtia
    given = [mtia.manual_seed(3), mtia.manual_seed_all(4), mtia.seed(), mtia.seed_all()]
    return given, len(mtia._queued_calls), mtia.is_initialized(), first_line(cuda, mtia.manual_seed, "x")


def states(cuda, torch_like):
    mtia = torch_like.mtia
    state = torch_like.zeros(16, dtype=torch_like.uint8)
    put = [
        first_line(cuda, mtia.set_rng_state, state, *where) for where in ((), (0,), ("mtia:1",), ("cpu",), ("cuda",))
    ]
    return (
        put,
        first_line(cuda, mtia.set_rng_state_all, [state]),
        first_line(cuda, mtia.get_rng_state_all),
        mtia.default_generators,
    )


def calls_are_queued(cuda, torch_like):
    mtia = torch_like.mtia
    seen = []
    given = [mtia._lazy_call(lambda: seen.append(1)), mtia._lazy_call(lambda: seen.append(2), seed=True)]
    failed = first_line(cuda, mtia.init)
    return given, len(mtia._queued_calls), failed, seen, mtia._initialized, first_line(cuda, mtia.init) == failed


def tensors(cuda, torch_like):
    return first_line(cuda, torch_like.empty, 3, device="mtia")["error"]
