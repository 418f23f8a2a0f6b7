"""Getters and setters of `torch._C` for settings of kernels that programs call when they start."""

from __future__ import annotations

import contextlib
from importlib import import_module

from support.on_oracle import outcome

NAMES = ["cublas_allow_tf32", "cublas_allow_fp16_accumulation", "cudnn_allow_tf32", "cudnn_enabled"]
NAMES += ["cudnn_benchmark", "cudnn_deterministic"]
REDUCTIONS = ["cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"]
FRESH_PROCESS = True  # settings of the process


def accessors(cuda, name):
    private = import_module(f"{cuda.__name__.partition('.')[0]}._C")
    return getattr(private, f"_get_{name}"), getattr(private, f"_set_{name}")


def flags(cuda, torch_like):
    rows = []
    for name in NAMES:
        read, write = accessors(cuda, name)
        rows.append([name, read(), write(True), read(), write(False), read()])
        rows.append([outcome(cuda, write, wrong) for wrong in (1, None, "x")])
    return rows


def flags_are_settings_of_backends(cuda, torch_like):
    cudnn, matmul = torch_like.backends.cudnn, torch_like.backends.cuda.matmul
    rows = []
    for place, prefix, names in (
        (cudnn, "cudnn_", ["enabled", "benchmark", "deterministic", "allow_tf32"]),
        (matmul, "cublas_", ["allow_tf32", "allow_fp16_accumulation"]),
    ):
        for name in names:
            read, write = accessors(cuda, prefix + name)
            write(True)
            seen = getattr(place, name)
            setattr(place, name, False)
            rows.append([name, seen, read()])
    accessors(cuda, "cublas_allow_tf32")[1](True)
    return rows, torch_like.get_float32_matmul_precision()


def reductions(cuda, torch_like):
    rows = []
    for name in REDUCTIONS:
        read, write = accessors(cuda, name)
        attribute = name.removeprefix("cublas_")
        each = ((False,), (False, False), (True,), (True, True))
        rows += [[write(*values), read(), getattr(torch_like.backends.cuda.matmul, attribute)] for values in each]
        rows.append([outcome(cuda, write, *wrong) for wrong in ((1,), ("x",), (True, False), (True, 1))])
        setattr(torch_like.backends.cuda.matmul, attribute, False)
        rows.append(read())
    return rows


def benchmark_limit(cuda, torch_like):
    private = import_module(f"{cuda.__name__.partition('.')[0]}._C")
    read, write = private._cuda_get_cudnn_benchmark_limit, private._cuda_set_cudnn_benchmark_limit
    wrong = [outcome(cuda, write, each) for each in (True, "x", None)]
    return read(), write(3), read(), wrong


def cudnn_flags(cuda, torch_like):
    """The flags hold inside the `with` block; None leaves one as it is."""
    cudnn, found = torch_like.backends.cudnn, []

    def values():
        names = "enabled benchmark benchmark_limit deterministic allow_tf32"
        return [getattr(cudnn, name) for name in names.split()]

    found.append(values())
    for named in (
        {},
        {"enabled": None, "benchmark": None, "deterministic": None, "allow_tf32": False},
        {"enabled": True, "benchmark": True, "benchmark_limit": 3, "deterministic": True, "allow_tf32": True},
        {"enabled": None, "benchmark_limit": None, "allow_tf32": None},
    ):
        with cudnn.flags(**named):
            found.append(values())
            with cudnn.flags(enabled=True, allow_tf32=False):
                found.append(values())
        found.append(values())
    with contextlib.suppress(KeyError), cudnn.flags(enabled=False):
        {}["missing"]
    found.append(values())
    before = cudnn.set_flags(_enabled=False, _benchmark_limit=5)
    found += [list(before[:5]), values()]
    cudnn.set_flags(*before)
    return [*found, values()]
