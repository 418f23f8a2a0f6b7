"""The host's compiler in place of Apple's: preprocess, translate, compile, and load the result."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .tokens import MSLError
from .translate import Translation, entry_of, translate

_HERE = Path(__file__).parent
_CACHE = Path(os.environ.get("SOFTMETAL_CACHE", _HERE.parents[2] / "build/softmetal"))
_HEADERS = (
    *("metal_stdlib", "metal_common", "metal_compute", "metal_math", "metal_integer", "metal_atomic", "metal_types"),
    *("metal_geometric", "metal_simdgroup", "metal_relational", "metal_limits", "metal_type_traits", "metal_numeric"),
    *("metal_pack", "metal_array", "metal_config", "metal_quadgroup"),
)
_OPTIONS = (
    *("-std=gnu++14", "-Ulinux", "-Uunix", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing"),
    *("-ffp-contract=off", f"-I{_HERE / 'include'}", "-include", "softmetal.hpp"),
)
_LINK = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()  # kernels call the runtime
_TIMEOUT = 120  # seconds


@cache
def compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler: clang, if there is one, because Apple's is one, too."""
    if os.environ.get("SOFTMETAL_CXX"):
        return tuple(os.environ["SOFTMETAL_CXX"].split())
    return (next((name for name in ("clang++", "g++", "c++") if shutil.which(name)), "g++"),)


class CompileError(Exception):
    """The text of the compiler."""


@dataclass
class Binding:
    """An argument of a kernel: what is bound at an index."""

    name: str
    space: str
    index: int
    size: int  # bytes of the type that it points to
    alignment: int
    read_only: bool


@dataclass
class CompiledKernel:
    name: str
    bindings: list[Binding]
    entry: Any
    fibers: bool
    static_memory: bool  # its library has threadgroup variables


@dataclass
class CompiledLibrary:
    kernels: dict[str, CompiledKernel]
    handle: Any  # keeps the code loaded


class _Shape(ctypes.Structure):
    _fields_ = (("size", ctypes.c_ulong), ("alignment", ctypes.c_ulong), ("constant", ctypes.c_int))


def _call(command: list[str], text: str) -> str:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
        env=os.environ | {"LC_ALL": "C"},
    )
    if done.returncode:
        raise CompileError(re.sub(r"<stdin>|<built-in>", "program_source", done.stderr))
    return done.stdout


@cache
def _stubs() -> Path:
    """Return a folder with Metal's headers, all empty: the language is in include/softmetal.hpp."""
    folder = _CACHE / "headers"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _HEADERS:
        (folder / name).touch()
    return folder


def preprocess(source: str, macros: dict[str, str], standard: int) -> str:
    """Return a source without comments and macros."""
    defined = {"__METAL__": "1", "__METAL_VERSION__": str(standard), "__HAVE_BFLOAT__": "1", **macros}
    command = [*compiler(), "-E", "-x", "c++", "-std=c++14", "-undef", "-nostdinc", f"-I{_stubs()}"]
    command += [f"-D{name}={value}" for name, value in defined.items()]
    return _call([*command, "-"], f'#line 1 "program_source"\n{source}')


def _sources() -> bytes:
    return b"".join(
        path.read_bytes() for path in sorted([*_HERE.glob("*.py"), *_HERE.glob("*.cpp"), *_HERE.glob("include/*.hpp")])
    )


@cache
def _digest_of_sources() -> str:
    return hashlib.sha256(_sources() + repr(compiler()).encode()).hexdigest()


def _built(name: str, command: list[str], text: str) -> Path:
    """Compile a text to a library, unless that was done."""
    path = _CACHE / name
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            try:
                _call([*command, "-o", str(unfinished), "-x", "c++", "-"], text)
            finally:
                if unfinished.exists():
                    unfinished.rename(path)
    return path


@cache
def runtime() -> Any:
    """Return the library that runs the threads of a dispatch."""
    text = (_HERE / "runtime.cpp").read_text()
    name = f"runtime-{_digest_of_sources()[:16]}.so"
    path = _built(name, [*compiler(), "-std=c++17", "-O1", "-fPIC", "-shared"], text)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.softmetal_run.restype = ctypes.c_int
    return library


def _compiled(source: str, macros: dict[str, str], standard: int) -> tuple[Path, Translation]:
    """Return the library of a source, and its kernels, which are kept in a file beside it."""
    strict = os.environ.get("SOFTMETAL_ADDRESS_SPACES") == "1"
    flags = os.environ.get("SOFTMETAL_FLAGS", "").split()
    key = json.dumps([source, macros, standard, strict, flags, _digest_of_sources()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    path, beside = _CACHE / f"{digest}.so", _CACHE / f"{digest}.json"
    if path.exists() and beside.exists():
        return path, Translation.from_json(beside.read_text())
    try:
        translation = translate(preprocess(source, macros, standard))
    except MSLError as error:
        raise CompileError(str(error)) from None
    if strict:
        from .address_spaces import problems

        if found := problems(source, macros, standard):
            raise CompileError("\n".join(found))
    entries = "".join(entry_of(kernel, number) for number, kernel in enumerate(translation.kernels))
    text = f'{translation.text}\n#line 1 "softmetal_entries"\n{entries}'
    path = _built(path.name, [*compiler(), *_OPTIONS, *_LINK, *flags], text)
    unfinished = beside.with_suffix(f".{os.getpid()}.json")
    unfinished.write_text(translation.to_json())
    unfinished.rename(beside)
    return path, translation


def build(source: str, macros: dict[str, str] | None = None, standard: int = 310) -> CompiledLibrary:
    """Compile MSL and return its kernels; raise CompileError with the compiler's text."""
    path, translation = _compiled(source, macros or {}, standard)
    runtime()
    handle = ctypes.CDLL(str(path))
    kernels = {}
    for number, kernel in enumerate(translation.kernels):
        shapes = (_Shape * (len(kernel.parameters) + 1))()
        getattr(handle, f"softmetal_describe_{number}")(shapes)
        bindings = [
            Binding(each.name, each.space, each.index, shape.size, shape.alignment, bool(shape.constant))
            for each, shape in zip(kernel.parameters, shapes, strict=False)
            if not each.builtin
        ]
        entry = getattr(handle, f"softmetal_entry_{number}")
        flags = translation.needs_fibers, translation.static_memory
        kernels[kernel.name] = CompiledKernel(kernel.name, bindings, entry, *flags)
    return CompiledLibrary(kernels, handle)
