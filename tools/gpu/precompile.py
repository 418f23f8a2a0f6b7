"""Compilation of forebay's kernels by NVRTC into the cache of a run, with all processors: it needs no GPU.

The conformance suite and the scenes use more than two hundred kernels, which forebay compiles one after another when it
first needs them. `python -m gpu.precompile MAJOR MINOR` compiles the most common ones while other parts use the GPU.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

__all__ = ["main"]

_SHARE = 0.75  # of the processors: a part measures PyTorch at the same time
_AXES = (1, 2)


def programs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the file and the macros of each program."""
    from forebay.backends.nvidia.kernels import draws, strided
    from forebay.backends.nvidia.kernels.sources import axes_class

    types, words = strided._TYPES.values(), [*strided._WORDS.values(), "Bytes"]  # noqa: SLF001 -- the same programs
    for to, source in itertools.product(types, types):
        yield "strided.cu", {"TO": to, "SOURCE": source, "AXES": 1}
    for word, axes in itertools.product(words, _AXES):
        yield "strided.cu", {"TO": word, "SOURCE": word, "AXES": axes_class(axes) if axes > 1 else 1}
    laws, elements = draws._LAWS.values(), draws._TYPES.values()  # noqa: SLF001 -- as above
    for law, element in itertools.product(laws, elements):
        yield "draw.cu", {"DISTRIBUTION": law, "ELEMENT": element, "AXES": 0}


def compile_one(program: tuple[str, dict[str, Any], tuple[int, int]]) -> bool:
    """Compile a program into the cache. Return False for one that does not exist, as not every type has every law."""
    from forebay.backends.nvidia.kernels.compiler import compile_program
    from forebay.backends.nvidia.kernels.sources import own_program
    from forebay.errors import ForebayError

    name, macros, capability = program
    try:
        compile_program(own_program(name, **macros), capability)
    except ForebayError:
        return False
    return True


def main(major: int, minor: int) -> None:
    """Compile all programs for a capability, and print how many there are."""
    workers = max(1, int(_SHARE * len(os.sched_getaffinity(0))))
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(compile_one, [(*each, (major, minor)) for each in programs()], chunksize=4))
    print(f"{sum(found)} of {len(found)} kernels are compiled")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
