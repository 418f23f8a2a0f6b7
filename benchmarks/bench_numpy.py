"""NumPy programs with and without forebay, and with other allocators preloaded, in alternating fresh processes.

`bench_numpy.py --thresholds` compares small array sizes, to find the smallest size worth allocating from forebay.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from measure import show, table

from forebay._base.byte_sizes import format_bytes

HERE = Path(__file__).parent
ROUNDS = 9
KIB, MIB = 1024, 1024 * 1024
LIBRARIES = {
    "jemalloc": ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"),
    "mimalloc": ("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0",
                 "/usr/lib/aarch64-linux-gnu/libmimalloc.so.2"),
}  # fmt: skip

# Program, bytes, smallest acceptable gain: the time without forebay divided by the time with it.
PROGRAMS = (
    ("temporaries", 256 * KIB, 4.0), ("temporaries", 512 * KIB, 4.0), ("temporaries", MIB, 4.0),
    ("temporaries", 4 * MIB, 2.5), ("temporaries", 16 * MIB, 1.3), ("temporaries", 64 * MIB, 1.3),
    ("softmax", 16 * MIB, 1.25), ("softmax", 64 * MIB, 1.25),
    ("layer_norm", 16 * MIB, 1.25), ("layer_norm", 64 * MIB, 1.25),
    ("temporaries", 4 * KIB, 0.98), ("temporaries", 32 * KIB, 0.98), ("temporaries", 64 * KIB, 0.98),
    ("temporaries", 128 * KIB, 0.98), ("small", 64, 0.98), ("small", KIB, 0.98), ("small", 16 * KIB, 0.98),
    ("temporaries_kept", 128 * KIB, 0.98), ("temporaries_kept", 256 * KIB, 0.98), ("temporaries_kept", MIB, 0.98),
    ("temporaries_kept", 4 * MIB, 0.98), ("temporaries_kept", 8 * MIB, 0.98), ("temporaries_kept", 16 * MIB, 0.98),
    ("temporaries_kept", 64 * MIB, 0.98),
    ("matmul", 256 * KIB, 0.98), ("matmul", 4 * MIB, 0.98), ("matmul", 16 * MIB, 0.98),
    ("zeros_untouched", 256 * KIB, 0.98), ("zeros_untouched", 4 * MIB, 0.98), ("zeros_untouched", 16 * MIB, 0.98),
    ("zeros_untouched", 64 * MIB, 0.98),
    ("zeros_written", 256 * KIB, 0.98), ("zeros_written", 4 * MIB, 0.98), ("zeros_written", 16 * MIB, 0.98),
    ("zeros_written", 64 * MIB, 0.98),
    ("growing", MIB, 0.98), ("growing", 8 * MIB, 0.98), ("growing", 64 * MIB, 0.98),
    ("concatenate", 4 * MIB, 0.98), ("concatenate", 64 * MIB, 0.98),
)  # fmt: skip


def run(case: str, nbytes: int, allocator: str, *extra: str, preload: str = "") -> float:
    env = os.environ | ({"LD_PRELOAD": preload} if preload else {}) | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "numpy_programs.py"), case, str(nbytes), allocator, *extra]
    return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def compare(case: str, nbytes: int, rivals: dict[str, str]) -> dict[str, list[float]]:
    """Return the times of each variant in alternating runs, so that load on the machine affects all."""
    times: dict[str, list[float]] = {name: [] for name in ("system", "forebay", *rivals)}
    for _ in range(ROUNDS):
        times["system"].append(run(case, nbytes, "system"))
        times["forebay"].append(run(case, nbytes, "forebay"))
        for name, library in rivals.items():
            times[name].append(run(case, nbytes, "system", preload=library))
    return times


def gains(base: list[float], other: list[float]) -> tuple[float, float, float]:
    """Return the ratio of the medians, and the smallest and largest ratio of a round."""
    ratios = [b / o for b, o in zip(base, other, strict=True)]
    return median(base) / median(other), min(ratios), max(ratios)


def thresholds() -> None:
    result = table(
        "System time divided by forebay's time, by array size",
        "array",
        "a+b in a loop",
        "sqrt(a*b+a)-b",
        "same, result kept",
    )
    for nbytes in (4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB):
        row = []
        for case in ("small", "temporaries", "temporaries_kept"):
            pairs = [(run(case, nbytes, "system"), run(case, nbytes, "forebay", "1")) for _ in range(ROUNDS)]
            row.append(f"{median(a for a, _ in pairs) / median(b for _, b in pairs):.2f}")
        result.add_row(format_bytes(nbytes), *row)
    show(result)


def main() -> None:
    if "--thresholds" in sys.argv:
        thresholds()
        return
    rivals = {name: found for name, paths in LIBRARIES.items() if (found := next(filter(os.path.exists, paths), None))}
    result = table(
        f"NumPy programs: system allocator's time divided by each other's (medians of {ROUNDS} alternating processes)",
        "program", "array", "system", "forebay", "range", "bound", *rivals,
    )  # fmt: skip
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for case, nbytes, bound in PROGRAMS:
        if wanted and case not in wanted:
            continue
        times = compare(case, nbytes, rivals)
        base = times["system"]
        gain, smallest, largest = gains(base, times["forebay"])
        others = [f"{gains(base, times[name])[0]:.2f}" for name in rivals]
        mark = "" if gain >= bound else " ✗"
        spread = f"{smallest:.2f} to {largest:.2f}"
        row = (f"{median(base) / 1000:.0f} µs", f"{gain:.2f}{mark}", spread, f"≥ {bound:g}")
        result.add_row(case, format_bytes(nbytes), *row, *others)
    show(result)


if __name__ == "__main__":
    main()
