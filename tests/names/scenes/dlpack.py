"""Tensors that share memory through DLPack."""

from __future__ import annotations

import numpy as np
from support.on_oracle import outcome


def described(found, source):
    shared = found.data_ptr() == source.data_ptr()
    return str(found.device), str(found.dtype).split(".")[-1], list(found.shape), list(found.stride()), shared


def tensors_of_the_library(cuda, torch_like):
    whole = torch_like.empty(2, 3, dtype=torch_like.float16, device="cuda")
    sources = [
        whole,
        whole[1:],
        whole.transpose(0, 1),
        whole[:, ::2],
        torch_like.empty(0, device="cuda"),
        torch_like.empty(3),
    ]
    return [described(torch_like.from_dlpack(each), each) for each in sources]


def memory_outlives_the_source(cuda, torch_like):
    before = cuda.memory_allocated()
    source = torch_like.empty(1000, device="cuda")
    found = torch_like.from_dlpack(source)
    is_same = found is source
    del source
    held = cuda.memory_allocated() - before
    del found
    return is_same, held, cuda.memory_allocated() - before


def copies_on_request(cuda, torch_like):
    host, near = torch_like.tensor([1, 2, 3]), torch_like.empty(3, device="cuda")
    array = np.arange(3)
    rows = []
    for source in (host, near):
        rows += [described(torch_like.from_dlpack(source, copy=copy), source) for copy in (None, False, True)]
        rows.append(described(torch_like.from_dlpack(source, device=source.device), source))
        rows.append(described(torch_like.from_dlpack(source, device=str(source.device), copy=True), source))
    rows.append(torch_like.from_dlpack(array, copy=True).data_ptr() == array.ctypes.data)
    rows.append(torch_like.from_dlpack(array).data_ptr() == array.ctypes.data)
    return rows


def capsules(cuda, torch_like):
    source = torch_like.tensor([1, 2, 3])
    capsule = source.__dlpack__()
    found = torch_like.from_dlpack(capsule)
    return described(found, source), [outcome(cuda, torch_like.from_dlpack, each) for each in (capsule, [1], None)]


def other_devices(cuda, torch_like):
    host, near = torch_like.tensor([1, 2, 3]), torch_like.empty(3, device="cuda")
    tried = {
        "of a device that is not current": lambda: torch_like.from_dlpack(torch_like.empty(2, device="cuda:1")),
        "to the device": lambda: str(torch_like.from_dlpack(host, device="cuda").device),
        "to the device, no copy": lambda: torch_like.from_dlpack(host, device="cuda", copy=False),
        "to the host, no copy": lambda: torch_like.from_dlpack(near, device="cpu", copy=False),
        "to another, no copy": lambda: torch_like.from_dlpack(near, device="cuda:1", copy=False),
        "no tensor": lambda: torch_like.from_dlpack(3),
        "no device": lambda: torch_like.from_dlpack(host, device="a"),
    }
    return {name: outcome(cuda, function) for name, function in tried.items()}
