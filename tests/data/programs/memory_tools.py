"""The work of memory tools: retries after errors, batch sizes, peaks, reports of tensors, out-of-memory records."""

import gc
import importlib.metadata
import pickle
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import torch.cuda
import torch.types
from torch.cuda.memory import _record_memory_history, _snapshot

MIB = 1 << 20


def allocate(mebibytes: int, device: torch.types.Device = "cuda") -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device=device)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "CUDA out of memory. " in str(error)


# Retry a function with an empty cache, then on the CPU (detectron2), and release references (accelerate).
def retry(function, *arguments):
    for prepare in (lambda: None, torch.cuda.empty_cache):
        prepare()
        try:
            return function(*arguments)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    return function(*(each.to(device="cpu") for each in arguments))


def needs_too_much_on_a_gpu(tensor):
    if tensor.device.type == "cuda":
        allocate(100_000)
    return tensor


print(retry(needs_too_much_on_a_gpu, torch.empty(3, device="cuda")).device, torch.cuda.memory_reserved())
objects = [allocate(64), allocate(3)]
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
objects.clear()
gc.collect()
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


# Search the largest batch that fits (accelerate, Lightning, Ultralytics).
tried, batch = [], 100_000
while True:
    tried.append(batch)
    try:
        sample = allocate(batch)
        break
    except torch.cuda.OutOfMemoryError as error:
        print(is_out_of_memory(error), isinstance(error, torch.OutOfMemoryError))
        batch //= 10
print(tried, sample.nbytes)
del sample
torch.cuda.empty_cache()


# Monitor a device (torchtitan, torchtune, Composer, Lightning, Megatron, DeepSpeed).
class Monitor:
    def __init__(self, device: torch.device) -> None:
        self.device, self.capacity = device, torch.cuda.get_device_properties(device).total_memory
        torch.cuda.reset_peak_memory_stats(device)

    def report(self) -> dict[str, float]:
        stats = torch.cuda.memory_stats(self.device)
        names = ("active_bytes.all.peak", "reserved_bytes.all.peak", "inactive_split_bytes.all.current")
        found = {name: round(stats[name] / self.capacity, 4) for name in names}
        found |= {name: stats.get(name, -1) for name in ("num_alloc_retries", "num_ooms")}
        peaks = torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        return found | {"allocated": peaks[0] / MIB, "reserved": peaks[1] / MIB, "capacity": self.capacity}


monitor = Monitor(torch.device("cuda:1"))
kept = allocate(100, "cuda:1")
temporary = allocate(700, "cuda:1")
del temporary
print(monitor.report())
torch.cuda.reset_peak_memory_stats(1)
print(monitor.report(), torch.cuda.mem_get_info(1))


# Measure the memory of a section by category (vLLM).
def measure(device: torch.device) -> dict[str, int]:
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    peak = torch.cuda.memory_stats(device).get("allocated_bytes.all.peak", 0)
    return {"peak": peak, "used": total - free, "reserved": reserved, "other": total - free - reserved}


device = torch.device("cuda", 0)
weights, before = allocate(512), measure(device)
torch.cuda.reset_peak_memory_stats(device)
activations = allocate(1024)
del activations
cache = allocate(256)
gc.collect()
torch.cuda.empty_cache()
after = measure(device)
print({name: after[name] - before[name] for name in before}, after["other"])


# Report all tensors by device, and which share memory (pytorch_memlab, PyTorch Geometric).
def report_tensors() -> None:
    by_device, seen = defaultdict(list), {}
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and not each.is_sparse and each.numel():
            by_device[each.device].append(each)
    for where in sorted(by_device, key=str):
        rows = []
        for tensor in sorted(by_device[where], key=torch.numel, reverse=True):
            storage = tensor.untyped_storage()
            first = storage.data_ptr() not in seen
            seen[storage.data_ptr()] = True
            rows.append((tuple(tensor.size()), tensor.numel() * tensor.element_size(), storage.size() if first else 0))
        print(where, sorted(rows), any(tensor.requires_grad or tensor.grad is not None for tensor in by_device[where]))


part = kept[: 5 * MIB]
host = torch.empty(10, 3, dtype=torch.half)
report_tensors()
del kept, part, cache, host


# Move the memory of a live tensor to the host and back (pytorch_memlab).
owner = weights
weights.data = weights.data.cpu()
print(owner.device, torch.cuda.memory_allocated())
weights.data = weights.data.cuda()
print(owner.device, owner is weights, torch.cuda.memory_allocated())
del owner, weights

# Stage batches in pinned memory.
pinned = torch.empty(1000, pin_memory=True)
staged = torch.empty(1000).pin_memory()
print(
    pinned.is_pinned(), staged.is_pinned(), staged.untyped_storage().is_pinned(), staged.cuda(non_blocking=True).device
)
del pinned, staged

# Write a snapshot, and one at each out-of-memory error (Composer, torchtnt, torchtitan).
torch.cuda.empty_cache()
_record_memory_history(max_entries=1000, stacks="python")
first, second = allocate(30), allocate(1)
del first
folder = Path(tempfile.mkdtemp())
(folder / "step.pickle").write_bytes(pickle.dumps(_snapshot(), protocol=4))
snapshot = pickle.loads((folder / "step.pickle").read_bytes())
print(sorted(each["total_size"] for each in snapshot["segments"]))
print([(each["action"], each["size"]) for each in snapshot["device_traces"][0]])


def observe(index: int, requested: int, total: int, free: int) -> None:
    (folder / "error.pickle").write_bytes(pickle.dumps(_snapshot()))
    print("out of memory:", index, requested, total, free)


torch._C._cuda_attach_out_of_memory_observer(observe)
try:
    allocate(5000)
except torch.OutOfMemoryError:
    print([each["action"] for each in torch.cuda.memory._snapshot()["device_traces"][0]][-3:])
page = torch.cuda._memory_viz.trace_plot(pickle.loads((folder / "error.pickle").read_bytes()))
(folder / "error.html").write_text(page)
print((folder / "error.html").stat().st_size > 1000, sorted(each.name for each in folder.iterdir()))
_record_memory_history(enabled=None)

print(sys.modules["torch"] is torch, importlib.metadata.version("torch").split("+")[0])
