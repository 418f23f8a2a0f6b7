"""Libraries in place of cuBLAS and cuBLASLt whose functions report success and do nothing.

The oracle runs no kernels, and NVIDIA's libraries refuse its driver. With these, PyTorch's own code around cuBLAS runs:
how it sizes workspaces, which of the libraries it calls, and what it allocates.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.on_oracle import ORACLE_HOME

_OBJECT = "int %s(void** made) { *made = calloc(1, 512); return 0; }"
_ZERO = "int %s(void* handle, int* value) { *value = 0; return 0; }"
_VERSION = "unsigned long %s(void) { return 130000; }"
_ALGORITHM = (
    "int %s(void* a, void* b, void* c, void* d, void* e, void* f, void* g, int n, void* found, int* count)"
    " { memset(found, 0, 96); *count = 1; return 0; }"
)
_BODIES = {
    "cublasCreate_v2": _OBJECT, "cublasLtCreate": _OBJECT, "cublasGetPointerMode_v2": _ZERO, "cublasGetMathMode": _ZERO,
    "cublasLtGetVersion": _VERSION, "cublasLtMatmulDescCreate": _OBJECT, "cublasLtMatrixLayoutCreate": _OBJECT,
    "cublasLtMatmulPreferenceCreate": _OBJECT, "cublasLtMatmulAlgoGetHeuristic": _ALGORITHM,
}  # fmt: skip


def build():
    """Return the paths of the libraries, which are built once."""
    folder = ORACLE_HOME / "stub-cublas"
    folder.mkdir(exist_ok=True)
    return [_build(folder, name) for name in ("libcublasLt", "libcublas")]


def _build(folder, name):
    built = folder / f"{name}.so.13"
    if built.exists():
        return built
    (real,) = (ORACLE_HOME / "venv" / "lib").glob(f"python3*/site-packages/nvidia/cu13/lib/{name}.so.13")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(real)], capture_output=True, text=True, check=True
    ).stdout
    names = sorted({line.split()[-1].partition("@")[0] for line in listed.splitlines()})
    bodies = [
        _BODIES[each] % each if each in _BODIES else f"int {each}(void) {{ return 0; }}"
        for each in names
        if each.startswith("cublas")
    ]
    source, versions = folder / f"{name}.c", folder / f"{name}.map"
    source.write_text("#include <stdlib.h>\n#include <string.h>\n" + "\n".join(bodies) + "\n")
    versions.write_text(f"{name}.so.13 {{ global: cublas*; local: *; }};\n")
    partial = folder / f"{name}.{os.getpid()}"
    options = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{name}.so.13", f"-Wl,--version-script,{versions}"]
    subprocess.run(["gcc", *options, "-o", str(partial), str(source)], check=True)
    return Path(partial.rename(built))
