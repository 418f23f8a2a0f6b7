"""Device arguments, the current device, properties and peers."""

from __future__ import annotations

from support.on_oracle import outcome


def raise_error():
    raise KeyError("through")


class HasStr:
    def __str__(self):
        return "odd"


def device_index_of_arguments(cuda, torch_like):
    index = cuda._utils._get_device_index
    devices = {
        "0": 0,
        "7": 7,
        "-3": -3,
        "cuda": "cuda",
        "cuda:1": "cuda:1",
        "cpu": "cpu",
        "none": None,
        "1.5": 1.5,
        "odd": HasStr(),
        "device": torch_like.device("cuda:1"),
        "device without an index": torch_like.device("cuda"),
        "device of the host": torch_like.device("cpu"),
        "context": cuda.device(1),
    }
    return {
        f"{name}, {optional=}, {allow_cpu=}": outcome(cuda, index, device, optional, allow_cpu)
        for name, device in devices.items()
        for optional in (False, True)
        for allow_cpu in (False, True)
    }


def current_device(cuda, torch_like):
    seen = [cuda.current_device()]
    for device in (1, "cuda:0", torch_like.device("cuda", 1), -1, "cuda:0"):
        cuda.set_device(device)
        seen.append(cuda.current_device())
    return seen


def invalid_current_devices(cuda, torch_like):
    return [outcome(cuda, cuda.set_device, device) for device in (None, "cuda", "cpu", 1.5)]


def missing_device(cuda, torch_like):
    results = []
    for use in (cuda.set_device, cuda.synchronize, cuda.Stream):
        found = outcome(cuda, use, 99)
        results.append([found.get("error"), found.get("message", "").splitlines()[:2]])
    return results


def contexts(cuda, torch_like):
    def inside(device):
        with cuda.device(device) as given:
            return cuda.current_device(), given is None

    seen = [inside(device) for device in (0, 1, -1, "cuda", "cuda:1", None, cuda.device(1))]
    return [*seen, cuda.current_device()]


def contexts_nest_and_pass_errors(cuda, torch_like):
    seen = []
    try:
        with cuda.device(1):
            seen.append(cuda.current_device())
            with cuda.device(0), cuda.device(1):
                seen.append(cuda.current_device())
                raise_error()
    except KeyError as error:
        seen.append(str(error))
    return [*seen, cuda.current_device()]


def context_restores_previous_device(cuda, torch_like):
    context = cuda.device(1)
    seen = [(context.idx, context.prev_idx)]
    with context:
        seen.append((context.idx, context.prev_idx))
    return seen


def device_of_a_tensor(cuda, torch_like):
    there = torch_like.empty(3, device="cuda:1")
    with cuda.device_of(there):
        inside = cuda.current_device()
    return inside, cuda.current_device(), outcome(cuda, cuda.device_of, 3)["error"], cuda.device_of(there).idx


def guards(cuda, torch_like):
    with cuda._DeviceGuard(1):
        inside = cuda.current_device()
    return inside, cuda.current_device()


def exchange_device(cuda, torch_like):
    seen = [cuda._exchange_device(1), cuda.current_device(), cuda._exchange_device(-1), cuda._maybe_exchange_device(0)]
    return [*seen, cuda.current_device(), outcome(cuda, cuda._exchange_device, "x")["error"]]


def properties_of_missing_devices(cuda, torch_like):
    uses = (cuda.get_device_properties, cuda.get_device_name, cuda.get_device_capability)
    return [outcome(cuda, use, index) for use in uses for index in (-1, 2, 99)]


def properties(cuda, torch_like):
    props = cuda.get_device_properties("cuda:1")
    names = ("major", "minor", "multi_processor_count", "max_threads_per_multi_processor", "warp_size")
    names += ("regs_per_multiprocessor", "max_threads_per_block", "is_integrated", "is_multi_gpu_board", "total_memory")
    known = [getattr(props, name) for name in names]
    return known, cuda.get_device_capability(), outcome(cuda, setattr, props, "major", 3)["error"]


def properties_cannot_be_constructed(cuda, torch_like):
    return outcome(cuda, cuda._CudaDeviceProperties)["error"]


def peers(cuda, torch_like):
    pairs = ((0, 1), (1, 0), (0, 0), (0, 2), (2, 0), (-1, 0), (0, -1), ("cuda:0", "cuda:1"))
    pairs += (("cuda", 1), (0, "cuda"), (0, None), (None, 1), (9, None))
    return [outcome(cuda, cuda.can_device_access_peer, *pair) for pair in pairs]


def device_count(cuda, torch_like):
    return cuda.device_count(), cuda.is_available(), cuda._is_compiled()
