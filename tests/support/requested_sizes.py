"""Sizes that calls of operators request from the allocator, recorded with PyTorch's CUDA build over the oracle.

tests/data/requested_sizes.json has expressions of R, Z, G and grad (see `names()`), and the sizes in their order.
`python3 tests/support/requested_sizes.py` records all expressions again; sizes of new ones may be empty before.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
RECORD = TESTS / "data" / "requested_sizes.json"


def requested(function):
    """Return the sizes that a function requests."""
    import torch

    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    function()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return " ".join(str(entry["size"]) for entry in trace if entry["action"] == "alloc")


def names():
    """Return the names of expressions: ones, integer zeros, ones that require gradients, and gradients of a function.

    The gradients are those of the sum of the results, or of their magnitudes.
    """
    import torch

    def ones(*shape, dtype=torch.float32):
        return torch.ones(shape, dtype=dtype, device="cuda")

    def zeros(*shape, dtype=torch.int64):
        return torch.zeros(shape, dtype=dtype, device="cuda")

    def wanted(*shape, dtype=torch.float32):
        return ones(*shape, dtype=dtype).requires_grad_()

    def grad(function, *arguments):
        result = function(*arguments)
        results = [each for each in (result if isinstance(result, tuple) else (result,)) if each.requires_grad]
        sums = [each.abs().sum() if each.is_complex() else each.sum() for each in results]
        given = [each for each in arguments if each.requires_grad]
        return torch.autograd.grad(sums, given, allow_unused=True)

    types = {"f16": torch.float16, "bf16": torch.bfloat16, "c64": torch.complex64, "i32": torch.int32}
    return {"torch": torch, "F": torch.nn.functional, "R": ones, "Z": zeros, "G": wanted, "grad": grad, **types}


def record():
    """Write the record, with an expression on each line."""
    from support.beside import paths_of_sources
    from support.on_oracle import ORACLE_HOME
    from support.operator_allocations import real_environment

    environment = {**os.environ, "PYTHONPATH": paths_of_sources(), **real_environment()}
    done = subprocess.run(
        [str(ORACLE_HOME / "venv/bin/python"), "-m", "support.requested_sizes", "print"],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def print_sizes():
    """Print a line of JSON for each expression."""
    for library in filter(None, os.environ.get("STUB_LIBRARIES", "").split(":")):
        ctypes.CDLL(library)
    known = names()
    for expression in json.loads(RECORD.read_text()):
        sizes = requested(lambda expression=expression: eval(expression, known))
        print(f"{json.dumps(expression)}: {json.dumps(sizes)}", flush=True)
    os._exit(0)  # libraries without functions cannot be closed


if __name__ == "__main__":
    if sys.argv[1:] == ["print"]:
        print_sizes()
    sys.path.insert(0, str(TESTS))
    record()
