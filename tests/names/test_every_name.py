"""`support.every_call` calls every public function, class and method of the runtime modules, or a reason is here."""

from __future__ import annotations

import ast
import json
from fnmatch import fnmatchcase
from pathlib import Path

from support.every_call import expression, lines

DATA = Path(__file__).parents[1] / "data"
TORCH = json.loads((DATA / "torch_names.json").read_text())["modules"]
CALLABLE = {"function", "context function", "class", "context class", "method", "class method", "static method"}
OBJECTS = {  # the classes of objects in the calls
    "stream": "torch.cuda.streams.Stream", "event": "torch.cuda.streams.Event", "pool": "torch.cuda.memory.MemPool",
    "graph": "torch.cuda.graphs.CUDAGraph",
}  # fmt: skip
NO_LIBRARY = "the oracle lacks nvidia-ml-py; scenes/sensors.py"
NO_DEVICE = "the oracle has no such device; scenes/mps_without_device.py, scenes/mtia_without_backend.py"
NOT_CALLED = {
    "torch.cuda.amp.*": "no operators to cast; tests/cuda/test_unsupported.py",
    "torch.cuda.gds.*": "needs cuFile; tests/cuda/test_unsupported.py",
    "torch.cuda.green_contexts.*": "needs a GPU; tests/cuda/test_unsupported.py",
    "torch.cuda.current_*_handle": "no cuBLAS, no cuSOLVER; tests/cuda/test_unsupported.py",
    "torch.cuda.tunable.*": "settings of matrix products; tests/cuda/test_unsupported.py",
    "torch.cuda._sanitizer.*": "uses no device; scenes/sanitizer.py",
    "torch.cuda._memory_viz.*": "functions of snapshots; scenes/memory_viz.py",
    "torch.cuda._device_limits.*": "numbers by compute capability; scenes/capability.py",
    "torch.cuda.[A-Z]*Storage*": "scenes/storages.py and tensor_storages.py",
    "torch.storage.*": "scenes/storages.py and tensor_storages.py",
    "torch.accelerator.graphs.*": "the oracle's build has no graphs of accelerators; tests/names/test_three_kinds.py",
    "torch.cuda.nccl.*": "the oracle runs no kernels; scenes/nccl.py",
    "torch.cuda.comm.broadcast*": "the oracle has no NCCL; scenes/comm.py",
    "torch.cuda.streams.Event.*ipc_handle": "the oracle has no IPC; scenes/event_arguments.py",
    "torch.cuda.clock_rate": NO_LIBRARY,
    "torch.cuda.device_memory_used": NO_LIBRARY,
    "torch.cuda.memory_usage": NO_LIBRARY,
    "torch.cuda.power_draw": NO_LIBRARY,
    "torch.cuda.temperature": NO_LIBRARY,
    "torch.cuda.utilization": NO_LIBRARY,
    "torch.cuda.memory.list_gpu_processes": NO_LIBRARY,
    "torch.cuda.graphs.CUDAGraph.get_graph_data": "the oracle's graphs cannot be inspected; tests/names/test_graphs.py",
    "torch.cuda.graph_annotations.is_available": "the oracle's graphs cannot be inspected; tests/names/test_graphs.py",
    "torch.mps.event.Event.*": NO_DEVICE,
    "torch.mps.streams.*": NO_DEVICE,
    "torch.mps.profiler.*metal*": "PyTorch without MPS lacks them; scenes/mps_without_device.py",
    "torch.mtia.Event*": NO_DEVICE,
    "torch.mtia.Stream": NO_DEVICE,
    "torch.mtia.Stream.*": NO_DEVICE,
    "torch.mtia.mtia_graph.MTIAGraph.*": NO_DEVICE,
}


def public_names() -> set[str]:
    return {
        f"{module}.{name}"
        for module, found in TORCH.items()
        for name, line in found["names"].items()
        if line["is"] in CALLABLE and "same as" not in line and not any(part[0] == "_" for part in name.split("."))
    }


def called_names() -> set[str]:
    """Return the names that lines call, each where it is defined."""
    homes = {
        f"{module}.{name}": line["same as"]
        for module, found in TORCH.items()
        for name, line in found["names"].items()
        if "same as" in line
    }
    found = set()
    for line in lines():
        for node in ast.walk(ast.parse(expression(line).partition(": ")[0])):
            if isinstance(node, ast.Attribute):
                root, _, rest = ast.unparse(node).partition(".")
                name = f"{OBJECTS.get(root, f'torch.{root}')}.{rest}"
                owner, _, member = name.rpartition(".")
                found.add(homes.get(name) or f"{homes.get(owner, owner)}.{member}")
        if line == "with stream":
            found.add("torch.cuda.streams.Stream")
    return found


def test_every_public_name_is_called_or_has_a_reason():
    missing = public_names() - called_names()
    assert {name for name in missing if not any(fnmatchcase(name, pattern) for pattern in NOT_CALLED)} == set()


def test_every_reason_is_needed():
    missing = public_names() - called_names()
    assert [each for each in NOT_CALLED if not any(fnmatchcase(name, each) for name in missing)] == []


def test_reasons_name_existing_files():
    root = Path(__file__).parents[1]
    words = {word.strip(",") for reason in NOT_CALLED.values() for word in reason.split()}
    files = [word for word in words if word.endswith(".py") and "/" in word]
    assert [
        file for file in files if not any((base / file).exists() for base in (root, root.parent, root / "names"))
    ] == []
