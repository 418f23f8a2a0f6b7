"""The page of operators whose allocations on emulated devices differ from those of PyTorch's CUDA build.

    python3 tools/operator_differences.py

writes docs/reference/operator-differences.md from tests/data/operator_allocations.json, which
`python3 tests/support/operator_allocations.py record` writes.
CAUSES has the cause of each difference, or says that it was not investigated.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data/operator_allocations.json"
PAGE = ROOT / "docs/reference/operator-differences.md"
SHORT = 12  # sizes of a sequence that are shown
TYPES = ("float32", "float16", "bfloat16")
OUTCOMES = {
    "equal": "the same sizes in the same order",
    "different": "listed below",
    "refused": "one side refuses every sample, as PyTorch does for the type, or its result depends on values",
    "ended": "without values the kernels of the CUDA build do not end, or read garbage",
    "absent": "PyTorch has no sample for the type",
}
LETTERS = {"equal": "E", "different": "D", "refused": "R", "ended": "X", "absent": "-"}

# Causes of differences, by the names of operators.
CAUSES = (
    (
        r"argwhere|combinations|index_fill|index_put|masked_fill|nonzero",
        "the count of elements depends on values: the CUDA build finds none over the oracle, where no kernel runs",
    ),
    (
        r"fft\.",
        "the result is equal; its gradient here has other strides, as the CPU converts mixed types before",
    ),
    (r"linalg\.(polar|matrix_sqrth)", "made of other operators on a GPU, of which the CPU has one kernel"),
    (r"nn\.functional\.linear_cross_entropy", "not investigated: one product has cuBLASLt's workspace"),
    (r"grid_sampler_2d", "if a program calls it itself, it is PyTorch's kernel; the gradient is taken as cuDNN's"),
    (r"_segment_reduce|_chunk_cat", "not investigated: an allocation differs"),
    (r"ldexp", "not investigated: halves have one allocation less"),
)


_INTRODUCTION = """\
Each operator of PyTorch's database of operators (`op_db`, {count} with their variants) was run in float32, float16 and
bfloat16, with its gradients: by PyTorch {version} for CUDA over a stand-in for the CUDA runtime, on which no kernel
runs, and on an emulated H200. cuBLAS, cuDNN, cuFFT, cuSPARSE, cuSOLVER and NVRTC were replaced by libraries whose
functions do nothing. They answer that they need no workspace: the workspaces that cuDNN, cuFFT, cuSPARSE and cuSOLVER
choose are neither compared nor counted. Up to four samples of each were compared, from which the rules of the emulated
device were derived, too: operators with other arguments may differ."""


def cause_of(name: str) -> str:
    """Return the cause of the differences of an operator. Raises LookupError if there is none."""
    for pattern, cause in CAUSES:
        if re.match(rf"(?:torch\.ops\.aten\.)?(?:{pattern})", name):
            return cause
    raise LookupError(f"{name} differs: add its cause to CAUSES of {Path(__file__).name}")


def page_of(data: dict[str, Any]) -> str:
    """Return the text of the page."""
    operators = data["operators"]
    counts = Counter(letter for entry in operators.values() for letter in entry["outcomes"])
    total = sum(counts.values())
    compared = counts["E"] + counts["D"]
    lines = [
        "# Differences of operators",
        "",
        "% Written by tools/operator_differences.py from tests/data/operator_allocations.json.",
        "",
        _INTRODUCTION.format(count=len(operators), version=data["torch"]),
        "",
        f"Of {total} pairs of an operator and a type, {compared} could be compared, and {counts['E']} are equal.",
        "",
        "| outcome | pairs | |",
        "|---|---|---|",
        *(f"| {name} | {counts[LETTERS[name]]} | {text} |" for name, text in OUTCOMES.items()),
        "",
        "Sizes are those of one sample, in the order of the requests, in bytes.",
        "",
        "| operator | types | PyTorch | forebay | cause |",
        "|---|---|---|---|---|",
    ]
    for name, entry in sorted(operators.items()):
        if "D" in entry["outcomes"]:
            types = [each for each, letter in zip(TYPES, entry["outcomes"], strict=True) if letter == "D"]
            shown = ", ".join(types) if len(types) < len(TYPES) else "all"
            real, emulated = (_sizes(each) for each in entry["sizes"])
            lines.append(f"| `{name}` | {shown} | {real} | {emulated} | {cause_of(name)} |")
    return "\n".join(lines) + "\n"


def _sizes(sizes: list[int]) -> str:
    """Return the sizes of a sequence, shortened."""
    return " ".join(map(str, sizes[:SHORT])) + (" …" if len(sizes) > SHORT else "") if sizes else "none"


if __name__ == "__main__":
    PAGE.write_text(page_of(json.loads(DATA.read_text())))
