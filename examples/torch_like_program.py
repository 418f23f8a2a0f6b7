"""A program for torch.cuda with two changed imports: streams, events, memory, out of memory, graphs, random numbers.

    FOREBAY_EMULATE=cuda:2@h200 python examples/torch_like_program.py

With the imports in the comments it runs on PyTorch and prints the same.
"""

import numpy as np

import forebay as torch  # import torch
from forebay import cuda  # from torch import cuda

MIB, GIB = 1 << 20, 1 << 30


def describe_devices():
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        name, mib = properties.name.removesuffix(" (emulated)"), properties.total_memory // MIB
        print(f"device {index}: {name}, {properties.multi_processor_count} SMs, {mib} MiB")


def pipeline(batches):
    """Upload, process and download batches on three overlapping streams; the host waits once."""
    upload, compute, download = cuda.Stream(), cuda.Stream(priority=-1), cuda.Stream()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record(upload)
    results = []
    for batch in batches:
        with cuda.stream(upload):
            inputs = torch.empty(batch.size, dtype=torch.float32, device="cuda")
            inputs.copy_(torch.from_numpy(batch), non_blocking=True)
        compute.wait_event(upload.record_event())
        with cuda.stream(compute):
            output = inputs.clone()
        inputs.record_stream(compute)  # its memory is not reused before `compute` has read it
        download.wait_stream(compute)
        result = np.empty_like(batch)
        with cuda.stream(download):
            torch.from_numpy(result).copy_(output, non_blocking=True)
        output.record_stream(download)
        results.append(result)
    end.record(download)
    end.synchronize()
    unchanged = all(map(np.array_equal, results, batches))
    print(f"pipeline: {len(results)} batches came back, unchanged: {unchanged}")
    print(f"elapsed time is positive: {start.elapsed_time(end) >= 0}")


def copy_to_the_other_device():
    copied = torch.tensor([1.0, 2.0, 3.0], device="cuda:0").to("cuda:1")
    with cuda.device(1):
        print(f"device {cuda.current_device()} got {copied.tolist()}")
    print(f"the devices are peers: {cuda.can_device_access_peer(0, 1)}")


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


def capture_and_replay():
    inputs = torch.zeros(3, device="cuda")
    results = torch.zeros(3, device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results.copy_(inputs.clone())
    for number in (1.0, 2.0):
        inputs.copy_(torch.tensor([number] * 3, device="cuda"))
        graph.replay()
        print(f"replayed: {results.tolist()}")


def allocate_largest(nbytes):
    """Return a buffer of the size, halved until the allocation succeeds."""
    while True:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        except cuda.OutOfMemoryError as error:
            print(str(error).partition(". GPU")[0])
            nbytes //= 2


def save_and_restore_random_state():
    cuda.manual_seed(0)
    numbers = torch.rand(5, device="cuda").tolist()
    print("random:", [round(number, 4) for number in numbers])
    state = cuda.get_rng_state()
    torch.rand(1000, device="cuda")
    print(f"the generator advanced: {cuda.get_rng_state().tolist() != state.tolist()}")
    cuda.set_rng_state(state)
    print(f"the state was restored: {cuda.get_rng_state().tolist() == state.tolist()}")


def main():
    describe_devices()
    pipeline([np.full(1 << 20, number, np.float32) for number in range(8)])
    copy_to_the_other_device()
    watch_memory()
    capture_and_replay()
    buffer = allocate_largest(512 * GIB)
    print(f"buffer: {buffer.numel() // GIB} GiB")
    save_and_restore_random_state()


if __name__ == "__main__":
    main()
