"""Memory statistics, limits and device memory, with valid and invalid arguments."""

from __future__ import annotations

from support.on_oracle import outcome

MIB = 1 << 20


def blocks(torch_like, *sizes, device="cuda"):
    return [torch_like.empty(size, dtype=torch_like.uint8, device=device) for size in sizes]


def counted_statistics(cuda, torch_like):
    held = blocks(torch_like, 1000, 2 * MIB, 30 * MIB)
    del held[1]
    return list(cuda.memory_stats().items())


def nested_statistics(cuda, torch_like):
    held = blocks(torch_like, 1000, 2 * MIB)
    nested = cuda.memory_stats_as_nested_dict()
    return len(held), nested["allocated_bytes"], nested["num_ooms"], nested["oversize_segments"], sorted(nested)


def current_and_peak_memory(cuda, torch_like):
    held = blocks(torch_like, 1000, 2 * MIB)
    del held[1]
    numbers = [cuda.memory_allocated, cuda.max_memory_allocated, cuda.memory_reserved, cuda.max_memory_reserved]
    return [[number(), number(0), number("cuda:1"), number(device=None)] for number in numbers]


def idle_device(cuda, torch_like):
    held = blocks(torch_like, 1000)
    return len(held), list(cuda.memory_stats(1).items()), cuda.memory_allocated(1), cuda.memory_snapshot()[0]["device"]


def resets(cuda, torch_like):
    held = blocks(torch_like, 2 * MIB, 3 * MIB)
    del held[0]
    cuda.reset_peak_memory_stats()
    cuda.reset_accumulated_memory_stats("cuda:0")
    cuda.reset_peak_memory_stats(1)
    stats = cuda.memory_stats()
    return [stats[f"allocated_bytes.all.{column}"] for column in ("current", "peak", "allocated", "freed")]


def deprecated_names_warn(cuda, torch_like):
    held = blocks(torch_like, 2 * MIB)
    old = cuda.memory_cached, cuda.max_memory_cached, cuda.reset_max_memory_allocated, cuda.reset_max_memory_cached
    return len(held), [outcome(cuda, call) for call in old], [outcome(cuda, call, 1) for call in old]


def invalid_devices(cuda, torch_like):
    cuda.init()
    calls = [cuda.memory_stats, cuda.memory_allocated, cuda.memory_summary]
    calls += [cuda.reset_peak_memory_stats, cuda.mem_get_info]
    return [[outcome(cuda, call, device) for call in calls] for device in ("cpu", torch_like.device("cpu"))]


def indices_out_of_range(cuda, torch_like):
    cuda.init()
    calls = cuda.memory_stats, cuda.memory_reserved, cuda.reset_peak_memory_stats, cuda.reset_accumulated_memory_stats
    return [outcome(cuda, call, 99) for call in calls]


def information(cuda, torch_like):
    before = cuda.mem_get_info()
    held = blocks(torch_like, 2 * MIB)
    results = [
        outcome(cuda, cuda.mem_get_info, device) for device in (None, 0, "cuda", torch_like.device("cuda:1"), -1)
    ]
    return len(held), before, results


def information_without_device(cuda, torch_like):
    found = outcome(cuda, cuda.mem_get_info, 99)
    return found["error"], found["message"].partition("\n")[0]


def fractions(cuda, torch_like):
    tried = (1, 1.5, -0.5, "half", None, True, float("nan"), 0.25)
    found = [outcome(cuda, cuda.set_per_process_memory_fraction, fraction) for fraction in tried]
    now = cuda.get_per_process_memory_fraction(), cuda.get_per_process_memory_fraction(1)
    cuda.set_per_process_memory_fraction(1.0)
    return found, now, cuda.get_per_process_memory_fraction("cuda:0")


def fractions_of_other_devices(cuda, torch_like):
    cuda.set_per_process_memory_fraction(0.5, 1)
    found = cuda.get_per_process_memory_fraction(), cuda.get_per_process_memory_fraction("cuda:1")
    cuda.set_per_process_memory_fraction(1.0, 1)
    set_it = cuda.set_per_process_memory_fraction
    return found, [outcome(cuda, set_it, 0.5, device) for device in ("cuda", torch_like.device("cuda"), "cpu", 1.5)]


def memory_fraction_limits_allocations(cuda, torch_like):
    cuda.set_per_process_memory_fraction(0.25)
    found = outcome(cuda, blocks, torch_like, 300 * MIB)
    cuda.set_per_process_memory_fraction(1.0)
    before, _, after = found["message"].partition("Including")
    return found["error"], before, "256.00 MiB allowed; " in after, len(blocks(torch_like, 300 * MIB))


def empty_cache(cuda, torch_like):
    held = blocks(torch_like, 2 * MIB) + blocks(torch_like, 3 * MIB, device="cuda:1")
    full = cuda.memory_reserved(), cuda.memory_reserved(1)
    held.clear()
    cached = cuda.memory_reserved(), cuda.memory_reserved(1)
    cuda.empty_cache()
    return full, cached, (cuda.memory_reserved(), cuda.memory_reserved(1))


def emptying_counts_on_unused_devices(cuda, torch_like):
    def counts():
        return [cuda.memory_stats(device)["num_sync_all_streams"] for device in (0, 1)]

    cuda.empty_cache()  # initialises nothing
    cuda.init()
    cuda.empty_cache()
    results = [counts()]
    held = blocks(torch_like, 1000)
    cuda.empty_cache()
    torch_like.accelerator.memory.empty_cache()
    results += [len(held), counts(), list(cuda.memory_stats(1)) == sorted(cuda.memory_stats(1))]
    cuda.reset_accumulated_memory_stats(1)
    results.append(counts())
    cuda.empty_cache()
    held += blocks(torch_like, 1000, device="cuda:1")
    return [*results, counts()]


def summary(cuda, torch_like):
    held = blocks(torch_like, 1000, 2 * MIB, 30 * MIB)
    del held[1]
    tables = cuda.memory_summary(), cuda.memory_summary(0, abbreviated=True), cuda.memory_summary("cuda:1", True)
    return [[" ".join(line.split()) if "summary" in line else line for line in table.split("\n")] for table in tables]


def unused_pinned_memory(cuda, torch_like):
    cuda.init()
    cuda.reset_peak_host_memory_stats()
    cuda.reset_accumulated_host_memory_stats()
    return list(cuda.host_memory_stats().items()), list(cuda.host_memory_stats_as_nested_dict())


def settings(cuda, torch_like):
    found = [outcome(cuda, cuda.memory._set_allocator_settings, text) for text in ("max_split_size_mb:64", "foo:1", "")]
    return [[row.get("message"), row["warns"][0][0]] for row in found]


def backend(cuda, torch_like):
    return cuda.get_allocator_backend(), type(cuda.memory._get_current_allocator()).__name__


def flattening(cuda, torch_like):
    rows = []
    cuda.memory._recurse_add_to_result(rows, "", {"a": {"b": 1, "c": {}}, (0, 1): 2}, str)
    cuda.memory._recurse_add_to_result(rows, "p", {"a": 1}, str)
    cuda.memory._recurse_add_to_result(rows, "p", 5, str)
    return rows


DIFFERS = {
    "indices_out_of_range": "the message has the index as a number; PyTorch's as a character, and none for -1",
}
