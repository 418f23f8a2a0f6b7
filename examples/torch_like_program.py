"""A program for torch.cuda: streams, events, memory and its end, graphs, random numbers. Two imports were changed.

    FOREBAY_EMULATE=cuda:2@h200 python examples/torch_like_program.py

With the imports that stand in the comments it runs on PyTorch and prints the same; where that has no real GPU under it,
all but the lines of random numbers and replays.
"""

import numpy as np

import forebay as torch  # import torch
from forebay import cuda  # from torch import cuda

MIB, GIB = 1 << 20, 1 << 30


def describe_devices():
    for index in range(cuda.device_count()):
        known = cuda.get_device_properties(index)
        name, mib = known.name.removesuffix(" (emulated)"), known.total_memory // MIB
        print(f"device {index}: {name}, {known.multi_processor_count} SMs, {mib} MiB")


def pipeline(batches):
    """Each batch goes up, is worked on and comes back, a stream for each; the host waits once."""
    up, work, down = cuda.Stream(), cuda.Stream(priority=-1), cuda.Stream()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record(up)
    results = []
    for batch in batches:
        with cuda.stream(up):
            arrived = torch.empty(batch.size, dtype=torch.float32, device="cuda")
            arrived.copy_(torch.from_numpy(batch), non_blocking=True)
        work.wait_event(up.record_event())
        with cuda.stream(work):
            worked = arrived.clone()
        arrived.record_stream(work)  # nobody else gets its memory before that is done
        down.wait_stream(work)
        result = np.empty_like(batch)
        with cuda.stream(down):
            torch.from_numpy(result).copy_(worked, non_blocking=True)
        worked.record_stream(down)
        results.append(result)
    end.record(down)
    end.synchronize()
    same = all(map(np.array_equal, results, batches))
    print(f"pipeline: {len(results)} batches came back, unchanged: {same}")
    print(f"it took time: {start.elapsed_time(end) >= 0}")


def copy_to_the_other_device():
    there = torch.tensor([1.0, 2.0, 3.0], device="cuda:0").to("cuda:1")
    with cuda.device(1):
        print(f"device {cuda.current_device()} got {there.tolist()}")
    print(f"the two are peers: {cuda.can_device_access_peer(0, 1)}")


def watch_memory():
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    small = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    large = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    del large
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        print(f"{name}: {getattr(cuda, name)() // MIB} MiB")
    segments = sorted(segment["total_size"] // MIB for segment in cuda.memory_snapshot())
    print(f"{small.numel() // MIB} MiB are in use; the segments have {segments} MiB")


def record_once_and_replay():
    given = torch.zeros(3, device="cuda")
    results = torch.zeros(3, device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results.copy_(given.clone())
    for number in (1.0, 2.0):
        given.copy_(torch.tensor([number] * 3, device="cuda"))
        graph.replay()
        print(f"replayed: {results.tolist()}")


def as_large_as_it_can_be(nbytes):
    """A buffer of that size, or of half of it, and so on."""
    while True:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        except cuda.OutOfMemoryError as error:
            print(str(error).partition(". GPU")[0])
            nbytes //= 2


def stop_and_go_on():
    cuda.manual_seed(0)
    numbers = torch.rand(5, device="cuda").tolist()
    print("random:", [round(number, 4) for number in numbers])
    state = cuda.get_rng_state()
    torch.rand(1000, device="cuda")
    print(f"the generator moved: {cuda.get_rng_state().tolist() != state.tolist()}")
    cuda.set_rng_state(state)
    print(f"and went back: {cuda.get_rng_state().tolist() == state.tolist()}")


def main():
    describe_devices()
    pipeline([np.full(1 << 20, number, np.float32) for number in range(8)])
    copy_to_the_other_device()
    watch_memory()
    record_once_and_replay()
    buffer = as_large_as_it_can_be(512 * GIB)
    print(f"buffer: {buffer.numel() // GIB} GiB")
    stop_and_go_on()


if __name__ == "__main__":
    main()
