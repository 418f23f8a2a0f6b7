"""What torch.mtia says where there is nothing that could be an MTIA device."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True  # nothing is queued for the first use
DIFFERS = {"tensors": "a device that is not there is a ForebayError of every kind, that says which there are"}


def asked(cuda, call, *arguments, **named):
    """The first line alone: forebay says why on the next. PyTorch goes on with how its company builds it."""
    found = outcome(cuda, call, *arguments, **named)
    if "says" in found:
        said = found["says"].partition("\n")[0]
        found["says"] = said.partition(". ")[0] if said.startswith("Torch not compiled") else said
    return found


def entered(context):
    with context:
        return "entered"


PLACES = (0, -1, 1, True, None, "mtia", "mtia:0", "cpu", "cuda", "cuda:1", 1.5)


def what_is_told(cuda, torch_like):
    it = torch_like.mtia
    told = [it.is_available(), it.device_count(), it.is_initialized(), it._is_in_bad_fork(), it._is_compiled()]
    return told, it.is_bf16_supported(), it.is_bf16_supported(False), it.is_current_stream_capturing()


def without_a_device_named(cuda, torch_like):
    it = torch_like.mtia
    uses = (
        "init", "_lazy_init", "synchronize", "current_device", "current_stream", "default_stream", "snapshot",
        "get_device_capability", "get_device_properties", "empty_cache", "get_rng_state", "initial_seed",
        "graph_pool_handle", "MTIAGraph",
    )  # fmt: skip
    return {use: asked(cuda, getattr(it, use)) for use in uses}


def with_a_device_named(cuda, torch_like):
    it = torch_like.mtia
    uses = (
        it.synchronize, it.current_stream, it.default_stream, it.set_device, it.get_device_capability,
        it.get_device_properties,
    )  # fmt: skip
    return {use.__name__: {str(place): asked(cuda, use, place) for place in PLACES} for use in uses}


def contexts_of_devices(cuda, torch_like):
    it = torch_like.mtia
    made = {str(place): asked(cuda, it.device, place) for place in PLACES}
    return made, {str(place): asked(cuda, lambda place=place: entered(it.device(place))) for place in PLACES}


def which_device_is_meant(cuda, torch_like):
    index = torch_like.mtia._utils._get_device_index
    flags = ({}, {"optional": True}, {"allow_cpu": True}, {"optional": True, "allow_cpu": True})
    return [[asked(cuda, index, place, **flag) for flag in flags] for place in PLACES]


def contexts_of_streams(cuda, torch_like):
    it = torch_like.mtia
    return asked(cuda, it.stream, None), asked(cuda, it.StreamContext, None), asked(cuda, it.set_stream, None)


def devices_exchanged(cuda, torch_like):
    it = torch_like.mtia
    return [asked(cuda, use, index) for use in (it._exchange_device, it._maybe_exchange_device) for index in (-1, 0, 3)]


def streams_by_number(cuda, torch_like):
    return asked(cuda, torch_like.mtia._set_stream_by_id, 0, 0, 19)


def graphs(cuda, torch_like):
    it = torch_like.mtia
    return asked(cuda, it.MTIAGraph, True), asked(cuda, it.graph, None), asked(cuda, it.graph, None, (0, 0))


def memory(cuda, torch_like):
    it = torch_like.mtia
    questions = (it.memory_stats, it.memory_allocated, it.max_memory_allocated, it.reset_peak_memory_stats)
    told = [[asked(cuda, use, place) for use in questions] for place in (None, 0, -1, 9, "cuda", "cpu", 1.5)]
    return told, [asked(cuda, use) for use in questions]


def histories(cuda, torch_like):
    it = torch_like.mtia
    record = it.record_memory_history
    return asked(cuda, record), asked(cuda, record, None), asked(cuda, record, "nonsense", "stacks", -3)


def observers(cuda, torch_like):
    attach = torch_like.mtia.attach_out_of_memory_observer
    return asked(cuda, attach, print), asked(cuda, attach, 3)["error"]


def seeds_wait(cuda, torch_like):
    it = torch_like.mtia
    given = [it.manual_seed(3), it.manual_seed_all(4), it.seed(), it.seed_all()]
    return given, len(it._queued_calls), it.is_initialized(), asked(cuda, it.manual_seed, "x")


def states(cuda, torch_like):
    it = torch_like.mtia
    state = torch_like.zeros(16, dtype=torch_like.uint8)
    put = [asked(cuda, it.set_rng_state, state, *where) for where in ((), (0,), ("mtia:1",), ("cpu",), ("cuda",))]
    return put, asked(cuda, it.set_rng_state_all, [state]), asked(cuda, it.get_rng_state_all), it.default_generators


def calls_wait(cuda, torch_like):
    it = torch_like.mtia
    seen = []
    given = [it._lazy_call(lambda: seen.append(1)), it._lazy_call(lambda: seen.append(2), seed=True)]
    failed = asked(cuda, it.init)
    return given, len(it._queued_calls), failed, seen, it._initialized, asked(cuda, it.init) == failed


def tensors(cuda, torch_like):
    return asked(cuda, torch_like.empty, 3, device="mtia")["error"]
