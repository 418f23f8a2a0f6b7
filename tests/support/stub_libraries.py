"""Libraries in place of cuBLAS, cuBLASLt, cuDNN, cuFFT, cuSPARSE, cuSOLVER and NVRTC whose functions do nothing.

The oracle runs no kernels, and NVIDIA's libraries refuse its driver. With these, PyTorch's own code around them runs:
which of their functions it calls, how it sizes the workspaces that it chooses itself, and what else it allocates. Every
function reports success. Objects that are created are zeroed memory, and a library that is asked for the size of its
workspace answers 0: such workspaces are not compared.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

from support import stub_cudnn
from support.on_oracle import ORACLE, ORACLE_HOME

HEADERS = {
    "libcublasLt": (), "libcublas": (), "libcufft": ("cufft.h", "cufftXt.h"), "libcusparse": ("cusparse.h",),
    "libcusolver": ("cusolverDn.h",), "libcudnn": ("cudnn.h",), "libnvrtc": (),
}  # fmt: skip
CUBLAS = ("libcublasLt", "libcublas")
_CREATE = "void** made", "*made = calloc(1, 512); return 0;"
_ZERO = "void* handle, int* value", "*value = 0; return 0;"
_ALGORITHM = (
    "void* a, void* b, void* c, void* d, void* e, void* f, void* g, int n, void* found, int* count",
    "memset(found, 0, 96); *count = 1; return 0;",
)
_PROGRAM_SIZE = "void* program, size_t* size", "*size = 16; return 0;"
_PROGRAM = "void* program, char* found", "memset(found, 0, 16); return 0;"
_FACTORIZATION = (
    "void* handle, int rows, int columns, void* matrices, int stride, void* scales, int* info, int count",
    "*info = 0; return 0;",
)
# Parameters and statements of functions.
_BODIES = {
    "cublasCreate_v2": _CREATE, "cublasLtCreate": _CREATE, "cublasGetPointerMode_v2": _ZERO, "cublasGetMathMode": _ZERO,
    "cublasLtGetVersion": ("void", "return 130000;"), "cublasLtMatmulDescCreate": _CREATE,
    "cublasLtMatrixLayoutCreate": _CREATE, "cublasLtMatmulPreferenceCreate": _CREATE,
    "cublasLtMatmulAlgoGetHeuristic": _ALGORITHM, **stub_cudnn.BODIES,
    "nvrtcCreateProgram": _CREATE, "nvrtcGetPTXSize": _PROGRAM_SIZE, "nvrtcGetCUBINSize": _PROGRAM_SIZE,
    "nvrtcGetProgramLogSize": _PROGRAM_SIZE, "nvrtcGetPTX": _PROGRAM, "nvrtcGetCUBIN": _PROGRAM,
    "nvrtcGetProgramLog": _PROGRAM, "nvrtcVersion": ("int* major, int* minor", "*major = 13; *minor = 2; return 0;"),
    "nvrtcGetErrorString": ("int status", 'return (long)"a function that does nothing";'),
    "nvrtcGetLoweredName": ("void* program, char* name, char** found", '*found = "kernel"; return 0;'),
    **{f"cublas{each}geqrfBatched": _FACTORIZATION for each in "SDCZ"},
}  # fmt: skip
_INCLUDED = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n"
# PyTorch looks the driver's functions up by name. dlsym() itself is found by dlvsym().
_FIND = """void* (*next)(void*, const char*) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"); return next(library, name);"""
_MADE = "void** made", "*made = malloc(64); return 0;"
_DRIVER = (
    ("cuModuleLoadData", *_MADE), ("cuModuleLoadDataEx", *_MADE), ("cuModuleGetFunction", *_MADE),
    ("cuLaunchKernel", "void", "return 0;"), ("cuLaunchCooperativeKernel", "void", "return 0;"),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "int* blocks", "*blocks = 1; return 0;"),
)  # fmt: skip
# The name and the parameters of a function that a header declares.
_DECLARATION = re.compile(r"\b(cu(?:fft|sparse|solver|dnn)\w+)\s*\(([^()]*)\)\s*;")
_SIZE = re.compile(r"(?:int|size_t)\s*\*\s*(\w*(?:work|size)\w*)\s*$", re.IGNORECASE)
_OF_PREVIEWS = "SpMVOp"  # the header defines their types on request only
_OBJECT = re.compile(r"(\w+)\s*\*+\s*(\w+)\s*$")


def build(libraries=CUBLAS):
    """Return the paths of libraries, which are built once."""
    folder = ORACLE_HOME / "stub-libraries"
    folder.mkdir(exist_ok=True)
    return [_build(folder, name, HEADERS[name]) for name in libraries]


def driver():
    """Return the path of a library to preload before the oracle's driver, which loads no kernels that were compiled."""
    folder = ORACLE_HOME / "stub-libraries"
    folder.mkdir(exist_ok=True)
    text = "".join(f"int own_{name}({listed}) {{ {body} }}\n" for name, listed, body in _DRIVER)
    found = "".join(f' if (!strcmp(name, "{name}")) return own_{name};' for name, _, _ in _DRIVER)
    text = f"{_INCLUDED}{text}void* dlsym(void* library, const char* name) {{{found} {_FIND} }}\n"
    built = folder / f"libdriver-{hashlib.sha256(text.encode()).hexdigest()[:12]}.so"
    if not built.exists():
        source = built.with_suffix(".c")
        source.write_text(text)
        partial = built.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(partial), str(source)], check=True)
        partial.rename(built)
    return built


def _build(folder, name, headers):
    (real,) = (ORACLE_HOME / "venv" / "lib").glob(f"python3*/site-packages/nvidia/*/lib/{name}.so.[0-9]*")
    include = real.parents[1] / "include"
    text = _source(real, include, headers)
    folder = folder / hashlib.sha256(text.encode()).hexdigest()[:12]
    built = folder / real.name
    if built.exists():
        return built
    folder.mkdir(exist_ok=True)
    source, versions = folder / f"{name}.c", folder / f"{name}.map"
    source.write_text(text)
    versions.write_text(f"{real.name} {{ global: cu*; nvrtc*; local: *; }};\n")
    partial = folder / f"{name}.{os.getpid()}"
    options = ["-w", "-shared", "-fPIC", f"-I{include}", f"-I{ORACLE.parent / 'fake/inc'}"]
    options += [f"-I{real.parents[2] / 'cu13/include'}", f"-Wl,-soname,{real.name}", f"-Wl,--version-script,{versions}"]
    subprocess.run(["gcc", *options, "-o", str(partial), str(source)], check=True)
    return Path(partial.rename(built))


def _source(real, include, headers):
    """Return the C source of a library that has all functions of the real one."""
    bodies = {}
    of_cudnn = sorted(include.glob("cudnn_*_v9.h")) if "cudnn.h" in headers else []
    for header in of_cudnn or [include / each for each in headers]:
        declared = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
        for function, listed in _DECLARATION.findall(declared):
            if _OF_PREVIEWS not in function:
                parameters = " ".join(listed.split()).replace("__half", "void")
                bodies[function] = parameters, _statements(function, parameters)
    bodies.update(_BODIES)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(real)], capture_output=True, text=True, check=True
    ).stdout
    names = sorted({line.split()[-1].partition("@")[0] for line in listed.splitlines() if " A " not in line})
    lines = ["#include <stdlib.h>", "#include <string.h>", *(f"#include <{each}>" for each in headers)]
    if of_cudnn:
        lines.append(stub_cudnn.DEFINITIONS)
    for each in names:
        if each.startswith(("cu", "nvrtc")):
            parameters, statements = bodies.get(each, ("void", "return 0;"))
            own = f"long own_{each}({parameters})"  # another name, as the header declares results of other types
            lines.append(f'{own} __asm__("{each}"); {own} {{ {statements} }}')
    return "\n".join(lines) + "\n"


def _statements(function, parameters):
    """Return the statements of a function, which makes an object, or answers that it needs no workspace."""
    listed = [each.strip() for each in parameters.split(",")]
    made = _OBJECT.search(listed[0])
    if "reate" in function and made and made[1] != "void":
        value = "1" if made[1] == "cufftHandle" else "calloc(1, 512)"
        return f"*{made[2]} = ({made[1]}){value}; return 0;"
    return "".join(f"*{found[1]} = 0; " for each in listed if (found := _SIZE.search(each))) + "return 0;"
