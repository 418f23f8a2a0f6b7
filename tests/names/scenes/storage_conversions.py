"""Conversions of typed and untyped storages, and pinned storages. No element is computed."""

from __future__ import annotations

import warnings

from support.on_oracle import outcome

FRESH_PROCESS = True  # deprecation warnings appear once per process
METHODS = ["double", "float", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool"]
METHODS += ["complex_double", "complex_float"]


def storages(module, device):
    """Return a typed and an untyped storage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        tensor = module.empty(3, device=device)
        return tensor.storage(), tensor.untyped_storage()


def described(storage):
    return str(storage.dtype).split(".")[-1], str(storage.device), storage.size(), storage.nbytes(), storage.type()


def conversions(cuda, torch_like):
    rows = []
    for device in ("cpu", "cuda:1"):
        for storage in storages(torch_like, device):
            for name in METHODS:
                made = getattr(storage, name)()
                rows.append([*described(made), made.data_ptr() == storage.data_ptr(), made.resizable()])
    return rows


def values_of_conversions(cuda, torch_like):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = torch_like.tensor([0.0, 1.75, 2.0]).storage()
    raw = torch_like.tensor([0, 1, 200], dtype=torch_like.uint8).untyped_storage()
    names = ["double", "float", "half", "long", "int", "short", "bool"]
    return [[getattr(each, name)().tolist() for name in names] for each in (numbers, raw)]


def properties(cuda, torch_like):
    rows = []
    for device in ("cpu", "cuda:1"):
        typed, untyped = storages(torch_like, device)
        rows.append([typed.is_hpu, untyped.is_hpu, typed.filename, untyped.filename, typed.resizable(), untyped.type()])
        rows.append(
            [typed.element_size(), typed.nbytes(), typed.size(), untyped.new().size(), str(untyped.new().device)]
        )
        moved = untyped.to(device="cpu"), untyped.to(device="cuda:0", non_blocking=True)
        rows.append([[str(each.device), each.nbytes()] for each in moved])
        rows.append([typed.clone().data_ptr() == typed.data_ptr(), typed.copy_(typed.clone()) is typed])
    return rows


def pinned_storages(cuda, torch_like):
    rows = []
    for device in ("cpu", "cuda:1"):
        for storage in storages(torch_like, device):
            pinned = outcome(cuda, storage.pin_memory)
            rows.append([pinned["value"], storage.pin_memory().is_pinned()] if "value" in pinned else pinned)
            rows.append([storage.is_pinned(), outcome(cuda, storage.is_pinned, "cuda")])
    typed, untyped = (each.pin_memory() for each in storages(torch_like, "cpu"))
    same = [each.pin_memory().data_ptr() == each.data_ptr() for each in (typed, untyped)]
    return rows, same, outcome(cuda, lambda: untyped.is_pinned(device="cpu"))
