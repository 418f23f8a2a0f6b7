"""Allocations of PyTorch's operators (its OpInfo database) on the real PyTorch over the oracle and on emulated devices.

`python3 tests/support/operator_allocations.py compare [PATTERN]` runs each sample, and the gradients of its results, in
PyTorch's CUDA build twice: over the oracle (see on_oracle.py), where no kernel runs but all allocations are made, and
on an emulated device of forebay. The sizes of allocations are compared in order. NVIDIA's libraries are replaced by
ones that do nothing (stub_libraries.py). `record` compares all operators, writes the outcomes to
tests/data/operator_allocations.json, from which tools/operator_differences.py writes a page of the documentation.
With `--layout transposed`, the arguments are not contiguous: transposed, or every second element; with `--layout
channels_last`, those with four or five dimensions are in this format. `--type` compares one type.

Samples are made on the CPU and copied. A sample whose allocations depend on values is not compared, as the oracle does
not compute any, nor one that either side refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SAMPLES = 4
SECONDS = 3  # of processor time, for an operator and a type
TYPES = ("float32", "float16", "bfloat16")
PRELOADED = ("libcudart.so.13", "libcuda.so.1")  # as the oracle's run.sh does
RECORD = TESTS / "data" / "operator_allocations.json"
LETTERS = {"equal": "E", "different": "D", "refused": "R", "ended": "X", "absent": "-"}
LAYOUTS = ("transposed", "channels_last")
LAYOUT = os.environ.get("LAYOUT_OF_OPERATORS", "")  # of the processes that measure
REFUSED, NEEDS_VALUES = "refused", "needs values"


def name_of(operator):
    """Return the name of an operator with its variant."""
    return operator.name + (f".{operator.variant_test_name}" if operator.variant_test_name else "")


def convert(argument, dtype):
    """Return an argument with its tensors on the device, and floats of another type if one is named."""
    import torch

    if isinstance(argument, torch.Tensor):
        made = argument.detach()
        if dtype is not None and made.dtype == torch.float32:
            made = made.to(dtype)
        made = made.cuda()
        return arranged(made).requires_grad_(argument.requires_grad)
    if isinstance(argument, (list, tuple)):
        converted = [convert(each, dtype) for each in argument]
        return type(argument)(*converted) if hasattr(argument, "_fields") else type(argument)(converted)
    if isinstance(argument, dict):
        return {key: "cuda" if key == "device" else convert(each, dtype) for key, each in argument.items()}
    return dtype if dtype is not None and argument == torch.float32 else argument


def arranged(tensor):
    """Return a tensor with the elements of a tensor in memory as the chosen layout demands."""
    import torch

    if tensor.layout != torch.strided or not LAYOUT:
        return tensor
    if LAYOUT == "channels_last":
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats.get(tensor.dim(), torch.preserve_format))
    if tensor.dim() > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.zeros(2 * tensor.numel(), dtype=tensor.dtype, device=tensor.device)[::2].copy_(tensor)


def tensors(result):
    """Return the tensors of a result or an argument."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [each for part in parts for each in tensors(part)]


def samples_of(operator, name):
    """Return samples of a type, and the type to convert them to: float32 is made if the CPU refuses the type."""
    import torch

    dtype = getattr(torch, name)
    if dtype not in operator.dtypes | operator.dtypesIfCUDA:
        return [], None
    for made, converted in ((dtype, None), (torch.float32, dtype)):
        torch.manual_seed(0)
        with contextlib.suppress(Exception):
            inputs = operator.sample_inputs("cpu", made, requires_grad=operator.supports_autograd)
            found = [each for each, _ in zip(inputs, range(SAMPLES), strict=False)]
            if found:
                return found, converted
    return [], None


def sizes_of(operator, sample, dtype, needs_values):
    """Return the sizes of the allocations of a sample, or why there are none."""
    import torch

    arguments, keywords = convert((sample.input, *sample.args), dtype), convert(sample.kwargs, dtype)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(None)  # a long history takes long to read
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)
    try:
        result = operator(*arguments, **keywords)
        outputs = [
            each.abs().sum() if each.is_complex() else each.sum() for each in tensors(result) if each.requires_grad
        ]
        inputs = [each for each in tensors([*arguments, keywords]) if each.requires_grad]
        if outputs and inputs:
            torch.autograd.grad(outputs, inputs, allow_unused=True)
    except needs_values:
        return NEEDS_VALUES
    except Exception as error:  # noqa: BLE001 -- recorded
        return f"{REFUSED}: {type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [entry["size"] for entry in trace if entry["action"] == "alloc"]


def run(emulated, names):
    """Print the sizes of the operators that are read from the standard input, a line of JSON for each type.

    Children of this process run them: the next one continues after a pair that ends its process.
    """
    for library in filter(None, os.environ.get("STUB_LIBRARIES", "").split(":")):
        ctypes.CDLL(library)  # libraries of the same name are not loaded again
    from torch.testing._internal.common_methods_invocations import op_db

    if emulated:
        import forebay.interop.torch  # noqa: F401 -- before the forks
    operators = {name_of(each): each for each in op_db}
    if names == ["--list"]:
        print(json.dumps(sorted(operators)))
        return
    pairs = [line.split() for line in sys.stdin]
    while pairs:
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.close(read_end)
            with os.fdopen(write_end, "w", buffering=1) as progress, device(emulated) as needs_values:
                for name, kind in pairs:
                    print(file=progress)
                    print(json.dumps([name, kind, rows_of(operators[name], kind, needs_values)]), flush=True)
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as progress:
            begun = len(progress.read())
        os.waitpid(child, 0)
        if not begun:
            raise RuntimeError(f"no operator was run; the next is {pairs[0]}")
        pairs = pairs[begun:]


@contextlib.contextmanager
def device(emulated):
    """Prepare the device. The value is the error of an operator that needs values."""
    import torch

    with contextlib.ExitStack() as stack:
        needs_values = ()
        if emulated:
            import forebay
            from forebay.interop.torch import patch
            from forebay.interop.torch.devices.values import DataDependent

            stack.enter_context(forebay.emulate("cuda", profile="h200"))
            stack.enter_context(patch("strict"))
            needs_values = DataDependent
        else:  # the import of the operators asks the oracle for its devices, which a fork does not end
            torch.cuda._is_in_bad_fork = lambda: False
        torch.zeros(1, device="cuda")
        yield needs_values


def rows_of(operator, kind, needs_values):
    """Return the sizes of each sample of a type. A sample that takes too long ends the process."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    found, dtype = samples_of(operator, kind)
    rows = []
    for each in found:
        rows.append(sizes_of(operator, each, dtype, needs_values))
        gc.collect(0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return rows


def real_environment():
    """Return the variables with which PyTorch's CUDA build runs over the oracle, with stubs of NVIDIA's libraries."""
    from support import stub_libraries
    from support.on_oracle import ORACLE_HOME

    preloaded = stub_libraries.driver(), *(ORACLE_HOME / "lib" / each for each in PRELOADED)
    return {
        "STUB_LIBRARIES": ":".join(map(str, stub_libraries.build(tuple(stub_libraries.HEADERS)))),
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "LD_LIBRARY_PATH": str(ORACLE_HOME / "lib"),
    }


def measure(emulated, pairs):
    """Return the rows of each pair of an operator and a type. A pair that ends the process has none."""
    from support.beside import TORCH, paths_of_sources
    from support.on_oracle import ORACLE_HOME

    packages = sysconfig.get_path("purelib", vars={"base": str(TORCH.parents[1])})
    # SciPy and expecttest of the other environment are found after the packages of the oracle.
    program = f"import sys; sys.path.append({packages!r}); from support import operator_allocations as o; "
    program += f"o.run({emulated}, sys.argv[1:])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths_of_sources()}
    interpreter = [str(ORACLE_HOME / "venv/bin/python")]
    if emulated:
        environment["PYTHONPATH"] += os.pathsep + sysconfig.get_path("purelib")
    else:
        environment |= real_environment()
    text = "".join(f"{name} {kind}\n" for name, kind in pairs or ())
    done = subprocess.run(
        [*interpreter, "-c", program, *([] if pairs else ["--list"])], env=environment, input=text, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if not pairs:
        return lines[-1]
    return dict.fromkeys(pairs, "ends the process") | {(name, kind): rows for name, kind, rows in lines}


def outcome_of(real, emulated):
    """Return the outcome of an operator and a type, and the first pair of rows that differ."""
    if isinstance(real, str) or isinstance(emulated, str):
        return "ended", None
    if not real:
        return "absent", None
    both = [pair for pair in zip(real, emulated, strict=False) if all(isinstance(each, list) for each in pair)]
    differing = [pair for pair in both if pair[0] != pair[1]]
    if differing:
        return "different", min(differing, key=lambda pair: len(pair[0]))
    return ("equal" if both else "refused"), None


def summary_of(real, emulated):
    """Return by operator the letters of the outcomes of its types, and sizes of a sample that differs."""
    found = {}
    for name, kind in real:
        outcome, rows = outcome_of(real[name, kind], emulated[name, kind])
        entry = found.setdefault(name, {"outcomes": ""})
        entry["outcomes"] += LETTERS[outcome]
        if rows is not None and "sizes" not in entry:
            entry["sizes"] = rows
    return found


def write(path, summary, version):
    """Write a summary, with an operator on each line."""
    lines = [f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}" for name, entry in summary.items()]
    text = ",\n".join(lines)
    path.write_text(f'{{\n"torch": {json.dumps(version)},\n"operators": {{\n{text}\n}}\n}}\n')


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("compare", "record"))
    parser.add_argument("pattern", nargs="?", default="", type=re.compile)
    parser.add_argument("--layout", choices=LAYOUTS)
    parser.add_argument("--type", choices=TYPES)
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.task == "record" and (chosen.pattern or chosen.layout or chosen.type):
        parser.error("a record is of all operators and types, contiguous")
    if chosen.layout:
        os.environ["LAYOUT_OF_OPERATORS"] = chosen.layout
    types = (chosen.type,) if chosen.type else TYPES
    names = measure(emulated=False, pairs=None)
    pairs = [(name, kind) for name in names if re.search(chosen.pattern, name) for kind in types]
    real, emulated = (measure(emulated=each, pairs=pairs) for each in (False, True))
    summary = summary_of(real, emulated)
    if chosen.task == "record":
        write(RECORD, summary, version_of_oracle())
    for name, entry in summary.items():
        if "sizes" in entry:
            print(f"{name} {entry['outcomes']}\n  PyTorch {entry['sizes'][0]}\n  forebay {entry['sizes'][1]}")
    counts = Counter(letter for entry in summary.values() for letter in entry["outcomes"])
    print(f"{len(pairs)} operators and types: { {name: counts[letter] for name, letter in LETTERS.items()} }")


def version_of_oracle():
    """Return the version of the oracle's PyTorch."""
    from support.on_oracle import ORACLE_HOME

    command = [str(ORACLE_HOME / "venv/bin/python"), "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    main(sys.argv[1:])
