"""Exchange of memory with CuPy and PyTorch on the GPU, in both directions, without copies; libraries that allocate from
forebay.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import forebay
from gpu import shared_allocators
from gpu.part import Job, NotRun, Outcome, execute, optional_module

COUNT = 1000
LAST = 3.0  # seconds that are left to report

Exchange = Callable[[Any], Any]


def address_of(array: Any) -> int:
    """Return the address of the first element."""
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr)


def sum_of(array: Any) -> float:
    forebay.cuda.synchronize()
    return float(sum(array.tolist()))


def check(made: Any, exchange: Exchange, synchronize: Callable[[], object]) -> str:
    """Exchange an array of ones, and write through each side. Return what is wrong, or an empty text."""
    synchronize()
    other = exchange(made)
    if address_of(other) != address_of(made):
        return f"the address is {address_of(other):#x}, not {address_of(made):#x}: the memory was copied"
    if tuple(other.shape) != (COUNT,):
        return f"the shape is {tuple(other.shape)}"
    for written, read, value in ((made, other, 2.0), (other, made, 3.0)):
        written[:] = value
        synchronize()
        if (found := sum_of(read)) != value * COUNT:
            side = "first" if written is made else "other"
            return f"the sum is {found} after a write of {value} through the {side} side"
    return ""


def only_interface(tensor: Any) -> Any:
    """Return an object that has nothing but the interface of a tensor, and keeps the tensor."""
    return SimpleNamespace(kept=tensor, __cuda_array_interface__=tensor.__cuda_array_interface__)


def cupy_exchanges(cupy: Any) -> dict[str, tuple[Any, Exchange]]:
    """Return, by name, what is exchanged with CuPy and how."""
    ours, theirs = forebay.ones(COUNT, device="cuda"), cupy.ones(COUNT, dtype="float32")
    return {
        "forebay to CuPy by DLPack": (ours, cupy.from_dlpack),
        "forebay to CuPy by __cuda_array_interface__": (ours, cupy.asarray),
        "CuPy to forebay by DLPack": (theirs, forebay.from_dlpack),
        "CuPy to forebay by __cuda_array_interface__": (theirs, lambda array: forebay.as_tensor(array, device="cuda")),
    }


def torch_exchanges(torch: Any) -> dict[str, tuple[Any, Exchange]]:
    """Return, by name, what is exchanged with PyTorch and how."""
    ours, theirs = forebay.ones(COUNT, device="cuda"), torch.ones(COUNT, device="cuda")

    return {
        "forebay to PyTorch by DLPack": (ours, torch.from_dlpack),
        "forebay to PyTorch by __cuda_array_interface__": (
            ours,
            lambda tensor: torch.as_tensor(only_interface(tensor), device="cuda"),
        ),
        "PyTorch to forebay by DLPack": (theirs, forebay.from_dlpack),
        "PyTorch to forebay by __cuda_array_interface__": (
            theirs,
            lambda tensor: forebay.as_tensor(only_interface(tensor), device="cuda"),
        ),
    }


LIBRARIES: dict[str, tuple[str, Callable[[Any], dict[str, tuple[Any, Exchange]]]]] = {
    "cupy": ("CuPy", cupy_exchanges),
    "torch": ("PyTorch", torch_exchanges),
}


def exchange_all(job: Job) -> Outcome:
    """Exchange arrays with the libraries that are installed, and let them allocate from forebay."""
    lines: list[str] = []
    wrong, absent = 0, []
    for module_name, (title, exchanges) in LIBRARIES.items():
        try:
            module = optional_module(module_name, title)
        except NotRun as reason:
            absent.append(str(reason))
            continue
        for name, (made, exchange) in exchanges(module).items():
            try:
                problem = check(made, exchange, forebay.cuda.synchronize)
            except Exception as error:  # noqa: BLE001 - reported, and the other directions are tried
                traceback.print_exc()
                problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            wrong += bool(problem)
            lines.append(f"* {name}: {problem or 'ok'}")
            job.save(Outcome("incomplete", f"{len(lines)} checks", lines))
    for title, (alone, program, kernels) in shared_allocators.PROGRAMS.items():
        if problem := shared_allocators.problem_of(alone, max(job.remaining() - LAST, 1.0)):
            absent.append(f"{title.partition(' ')[0]} alone {problem}")
            continue
        if job.remaining() < LAST:
            absent.append(f"no time for: {title}")
            continue
        problem = shared_allocators.problem_of(program + kernels, job.remaining() - LAST)
        wrong += bool(problem)
        lines.append(f"* {title}: {problem or 'ok'}")
        job.save(Outcome("incomplete", f"{len(lines)} checks", lines))
    if not lines:
        raise NotRun("; ".join(absent))
    detail = "; ".join([f"{len(lines) - wrong} of {len(lines)} checks", *absent])
    return Outcome("failed" if wrong else "ok", detail, lines)


if __name__ == "__main__":
    execute(exchange_all)
