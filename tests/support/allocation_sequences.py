"""Sequences of allocations of PyTorch programs, on emulated devices and on the real PyTorch over the oracle.

A program is a function `name(torch)` in a file of tests/interop/torch/allocation_programs, or an expression of its
EXPRESSIONS. It computes on the device "cuda", and what it returns is kept until the sequence has been read. The
sequence has a row for each allocation, [size, stream], and for each free, the number of the allocation; sizes are those
that were requested, streams are numbered as they appear.

`python3 tests/support/allocation_sequences.py record FILE...` runs the programs of files in the real PyTorch over the
oracle (see on_oracle.py) and writes tests/data/torch_allocations/FILE.json. No kernel runs there: the allocations are
those that PyTorch's own code makes, the values are not computed, and a program whose allocations depend on values
cannot be recorded. cuBLAS and cuDNN are replaced by functions that do nothing (stub_libraries.py).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "interop" / "torch" / "allocation_programs"
RECORDS = TESTS / "data" / "torch_allocations"
SECONDS = 900
PROGRAM_SECONDS = 120  # compiled programs take the longest


def programs_of(file):
    """Return the programs of a file by name."""
    spec = importlib.util.spec_from_file_location(f"allocation_programs_{file}", PROGRAMS / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    programs = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    for group, (statements, expressions) in getattr(module, "EXPRESSIONS", {}).items():
        for each in expressions:
            programs[f"{group}: {each}"] = _program(statements, each)
    return programs


def _program(statements, expression):
    def program(torch):
        names = {"torch": torch}
        exec(statements, names)
        return eval(expression, names), names

    return program


def sequence_of(torch, program):
    """Run a program, and return its sequence of allocations."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.empty(1, device="cuda")
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # the collection before the next program, of hundreds, looks only at what this one makes
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)
    start = len(torch.cuda.memory._snapshot()["device_traces"][0])
    kept = program(torch)
    trace = torch.cuda.memory._snapshot()["device_traces"][0][start:]
    del kept
    torch.cuda.memory._record_memory_history(None)
    return rows_of(trace)


def rows_of(trace):
    """Return the sequence of the entries of a recorded history."""
    rows, live, streams, count = [], {}, {}, 0
    for entry in trace:
        if entry["action"] == "alloc":
            rows.append([entry["size"], streams.setdefault(entry["stream"], len(streams))])
            live[entry["addr"]] = count
            count += 1
        elif entry["action"] == "free_requested":
            rows.append(live.pop(entry["addr"], -1))
    return rows


def readable(rows):
    """Return a sequence as lines: "+size" and "-size", with the stream if it is not the first."""
    lines, sizes = [], []
    for row in rows:
        if isinstance(row, list):
            sizes.append(row[0])
            lines.append(f"+{row[0]}" + (f" stream {row[1]}" if row[1] else ""))
        else:
            lines.append(f"-{sizes[row]} #{row}" if row >= 0 else "-older")
    return lines


def run_all(file, skipped=()):
    """Print the sequence of each program of a file, or its error, as a line of JSON."""
    for library in filter(None, os.environ.get("STUB_LIBRARIES", "").split(":")):
        ctypes.CDLL(library)  # libraries of the same name are not loaded again
    import torch

    torch.zeros(1, device="cuda")
    for name, program in programs_of(file).items():
        if name in skipped:
            continue
        print(json.dumps([name]), flush=True)
        signal.alarm(PROGRAM_SECONDS)  # ends the process
        try:
            rows = sequence_of(torch, program)
        except Exception as error:  # noqa: BLE001 -- recorded
            rows = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        signal.alarm(0)
        print(json.dumps([torch.__version__, name, rows]), flush=True)
        gc.collect()


def record(name):
    """Run the programs of a file in the real PyTorch over the oracle. Those that need values may end the process.

    With the suffix ".kept", PyTorch keeps the workspaces of cuBLAS.
    """
    from support import stub_libraries
    from support.on_oracle import ORACLE

    file, _, kept = name.partition(".")
    settings = {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"} if kept else {}
    environment = {
        **os.environ,
        **settings,
        "STUB_LIBRARIES": ":".join(map(str, stub_libraries.build((*stub_libraries.CUBLAS, "libcudnn")))),
    }
    sequences, version, skipped = {}, "", []
    while True:
        command = ["bash", str(ORACLE), __file__, "run", file, *skipped]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for line in lines:
            if len(line) == 3:
                version, name, rows = line
                sequences[name] = rows
                skipped.append(name)
        if not lines or len(lines[-1]) == 3:
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            return {"torch": version, "sequences": sequences}
        skipped += lines[-1]
        sequences[lines[-1][0]] = "not recorded: needs values"


def write(path, result):
    """Write a record, with a sequence on each line."""
    lines = [f'"torch": {json.dumps(result["torch"])},', '"sequences": {']
    items = [
        f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}" for name, rows in result["sequences"].items()
    ]
    path.write_text("{\n" + "\n".join(lines) + "\n" + ",\n".join(items) + "\n}\n}\n")


def main(arguments):
    if arguments[0] == "run":
        run_all(arguments[1], arguments[2:])
        return
    for file in arguments[1:]:
        write(RECORDS / f"{file}.json", record(file))


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    main(sys.argv[1:])
