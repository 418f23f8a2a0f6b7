"""Write the table of verified versions of libraries: .venv/bin/python tools/library_versions.py --write

Each row is a socket of forebay, with the tests that use it and the versions of the libraries for which they pass: on
the software driver for GPUs, in the environments `.venv/numba` and `.venv/torch`. Without --write, it is printed only.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from steps import ROOT, fail

PAGE = ROOT / "docs/reference/library-versions.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


class Socket(NamedTuple):
    """A way in which a library uses forebay, and the tests of it."""

    title: str
    environment: str  # below .venv; "" for .venv itself
    packages: tuple[str, ...]
    tests: str


SOCKETS = (
    Socket("CuPy's allocator", "numba", ("cupy-cuda13x",), "tests/interop/test_cupy.py"),
    Socket("Numba's memory manager (EMM)", "numba", ("numba-cuda", "numba"), "tests/interop/test_numba.py"),
    Socket("RMM's memory resource", "numba", ("rmm-cu13", "librmm-cu13"), "tests/interop/test_rmm.py"),
    Socket("PyTorch's pluggable allocator", "torch", ("torch",), "tests/interop/torch/test_allocator.py"),
    Socket(
        "DLPack, with versions and read-only memory", "torch", ("torch", "jax", "numpy"),
        "tests/runtime/tensors/test_dlpack_libraries.py",
    ),
)  # fmt: skip


def main(arguments: list[str]) -> int:
    if {*arguments} - {"--write"}:
        fail(f"unknown argument {arguments[0]!r}")
    rows = ["| socket | library | tests | result |", "|---|---|---|---|", *map(row, SOCKETS)]
    table = "\n".join(rows) + "\n"
    print(table, end="")
    if "--write" in arguments:
        page = PAGE.read_text()
        before, _, rest = page.partition(START)
        PAGE.write_text(f"{before}{START}{table}{END}{rest.partition(END)[2]}")
    return 0 if all("failed" not in each for each in rows) else 1


def row(socket: Socket) -> str:
    """Run the tests of a socket, and return its row."""
    versions = ", ".join(version_of(socket.environment, name) for name in socket.packages)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", socket.tests], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return f"| {socket.title} | {versions} | `{socket.tests}` | {counts(done.stdout)} |"


def counts(output: str) -> str:
    """Return what pytest says at its end: "12 passed, 1 skipped"."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|errors?)", last)) or "failed: no tests ran"


def version_of(environment: str, name: str) -> str:
    python = Path(sys.prefix, environment, "bin/python")
    code = f"from importlib.metadata import version; print(version({name!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return f"{name} {done.stdout.strip() or 'is missing'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
