"""Device arguments: strings, the constructor, and every function of devices and statistics that takes a device."""

from __future__ import annotations

from support.on_oracle import outcome

FRESH_PROCESS = True

DIFFERS = {
    "wide_indices": "an index above 127 keeps its value",
    "indices_that_pytorch_prints_as_characters": "they are printed as numbers",
}

STRINGS = (
    "", "cuda", "cuda:0", "cuda:1", "cuda:127", "cuda:", "cuda:-1", "cuda:01", "cuda0", "cuda:x", "cuda:1:2", ":1", "1",
    "-1", "foo", "foo:1", "CUDA", "cuda ", " cuda", "cuda:99999999999", "cpu:0", "cpu:1", "mps:1", "meta", "mtia:2",
    "privateuseone", "xla:1", "hip",
)  # fmt: skip
WRONG = ("", "cuda:-1", "cuda0", "foo", "cpu", "mps:0", "cuda:2", 2, 99, -1, -2, None, 1.5, True, b"cuda", [])
FUNCTIONS = (
    "set_device", "synchronize", "get_device_capability", "get_device_properties", "mem_get_info", "current_stream",
    "default_stream", "Stream", "device", "_DeviceGuard", "_exchange_device",
)  # fmt: skip
STATISTICS = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
    "max_memory_cached", "memory_stats", "memory_stats_as_nested_dict", "memory_summary", "reset_peak_memory_stats",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
)  # fmt: skip


def short(value):
    """Return plain values as they are, and the length of containers and texts."""
    return len(value) if isinstance(value, (dict, str)) else value


def strings(cuda, torch_like):
    return {text: outcome(cuda, lambda text=text: str(torch_like.device(text))) for text in STRINGS}


def constructor(cuda, torch_like):
    device = torch_like.device
    calls = {
        "None": (None,), "float": (1.5,), "bool": (True,), "list": ([],), "list of": ([1, "a"],), "tuple": (("cuda",),),
        "bytes": (b"cuda",), "negative": (-1,), "index": (1,), "kind and index": ("cuda", 1),
        "kind and negative": ("cuda", -1), "kind and None": ("cuda", None), "kind and float": ("cuda", 1.5),
        "kind and str": ("cuda", "1"), "kind and bool": ("cuda", True), "two indices": ("cuda:1", 1),
        "int and index": (1, 1), "device and index": (device("cuda"), 1), "device": (device("cuda:1"),),
        "object": (object(),), "float and index": (1.5, 1),
    }  # fmt: skip
    named = {"device": {"device": "cuda"}, "type": {"type": "cuda"}, "both": {"type": "cuda", "index": 1}}
    found = {name: outcome(cuda, lambda call=call: str(device(*call))) for name, call in calls.items()}
    return found | {name: outcome(cuda, lambda call=call: str(device(**call))) for name, call in named.items()}


def device_functions(cuda, torch_like):
    cuda.init()
    results = {}
    for name in FUNCTIONS:
        for device in WRONG:
            results[f"{name}({device!r})"] = found = outcome(cuda, getattr(cuda, name), device)
            if name in ("current_stream", "default_stream", "Stream") and "value" in found:
                found["value"] = str(getattr(cuda, name)(device).device)
            if name in ("get_device_properties", "mem_get_info"):
                found.pop("value", None)
            cuda.set_device(0)
    return results


def entering_contexts(cuda, torch_like):
    def enter(context, device):
        with getattr(cuda, context)(device):
            return cuda.current_device()

    names = [name for name in WRONG if name is not True]  # it is 1 where device 1 is current
    return {
        f"{context}({device!r})": outcome(cuda, enter, context, device)
        for context in ("device", "_DeviceGuard")
        for device in names
    }


def statistics(cuda, torch_like):
    cuda.init()
    unprintable = (2, 99, -1, -2, "cuda:2")
    results = {}
    for name in STATISTICS:
        for device in WRONG:
            if device not in unprintable or device is True:
                function = getattr(cuda, name)
                results[f"{name}({device!r})"] = outcome(cuda, lambda f=function, d=device: short(f(d)))
    return results


def statistics_before_the_first_use(cuda, torch_like):
    names = [name for name in STATISTICS if "reset" not in name and name != "memory_summary"]
    found = {
        f"{name}({device!r})": outcome(cuda, lambda name=name, device=device: short(getattr(cuda, name)(device)))
        for name in names
        for device in WRONG
    }
    return found, cuda.is_initialized()


def indices_that_pytorch_prints_as_characters(cuda, torch_like):
    cuda.init()
    return [outcome(cuda, getattr(cuda, name), 65) for name in STATISTICS]


def synchronize_initialises_first(cuda, torch_like):
    return outcome(cuda, cuda.synchronize, "cpu"), cuda.is_initialized()


def wide_indices(cuda, torch_like):
    return [outcome(cuda, lambda text=text: str(torch_like.device(*text))) for text in (("cuda:128",), ("cuda", 300))]


def indices_that_overflow(cuda, torch_like):
    names = ("synchronize", "_exchange_device", "current_stream", "default_stream", "Stream", "memory_allocated")
    names += ("memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats")
    cuda.init()
    return {name: [outcome(cuda, getattr(cuda, name), index) for index in (300, 1 << 40)] for name in names}


def peers(cuda, torch_like):
    return {
        repr(device): (
            outcome(cuda, cuda.can_device_access_peer, device, 1),
            outcome(cuda, cuda.can_device_access_peer, 0, device),
        )
        for device in WRONG
    }


def index_of_arguments(cuda, torch_like):
    index = cuda._utils._get_device_index
    return {f"{device!r}": [outcome(cuda, index, device), outcome(cuda, index, device, True)] for device in WRONG}


def tensors_on_missing_devices(cuda, torch_like):
    here = torch_like.empty(1)
    uses = {
        "empty": lambda device: torch_like.empty(1, device=device),
        "zeros": lambda device: torch_like.zeros(1, device=device),
        "to": here.to,
        "to(device=)": lambda device: here.to(device=device),
        "cuda": here.cuda,
    }
    devices = ("cuda:2", "cuda:9", 2, "cuda0", "foo", "", "cuda:-1")
    return {f"{name}({device!r})": outcome(cuda, use, device) for name, use in uses.items() for device in devices}


def cuda_method_of_other_kinds(cuda, torch_like):
    here = torch_like.empty(1)
    return [outcome(cuda, here.cuda, device) for device in ("cpu", "cpu:0", "mps", torch_like.device("meta"))]


def default_devices(cuda, torch_like):
    results = []
    for device in ("cuda:1", torch_like.device("cuda", 0), 1, "cuda:2", "foo", "cuda:-1", -1, None):
        found = outcome(cuda, torch_like.set_default_device, device)
        results.append((found, str(torch_like.get_default_device())))
    torch_like.set_default_device("cuda:2")
    results.append(outcome(cuda, torch_like.empty, 1))
    torch_like.set_default_device(None)
    return results
