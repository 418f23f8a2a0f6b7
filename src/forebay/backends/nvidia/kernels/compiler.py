"""Compilation of CUDA C++ by NVRTC, with the results kept on disk."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from forebay.errors import DeviceError, Unsupported
from forebay.vendor import KernelCache

__all__ = ["Image", "Program", "compile_program"]

_MISSING = (
    "kernels are compiled by NVRTC, which was not found ({}): pip install nvidia-cuda-nvrtc, which is a part of "
    "'forebay[cuda]', or install the CUDA Toolkit"
)
_FAILED = 6  # NVRTC_ERROR_COMPILATION
_lock = threading.Lock()  # of the compiler: a program is compiled once, even if several threads need it


@dataclass(frozen=True)
class Program:
    """CUDA C++ source, and what it is compiled with."""

    source: str
    name: str  # name of the source in messages
    options: tuple[str, ...] = ()  # NVRTC's options, without the architecture
    headers: tuple[tuple[str, str], ...] = ()  # name and text of each header that may be included
    templates: tuple[str, ...] = ()  # kernels that are instances of templates, such as ``"scale<float>"``


@dataclass(frozen=True)
class Image:
    """A compiled program: code for a module, and the symbols of the kernels that are instances of templates."""

    code: bytes
    symbols: Mapping[str, str]


def compile_program(program: Program, capability: tuple[int, int]) -> Image:
    """Return the program compiled for a device, from the cache on disk if it was compiled before.

    Unsupported is raised if NVRTC is not installed or has no architecture that the device can run, and DeviceError,
    whose text contains the compiler's messages, if the program is invalid.
    """
    api = _nvrtc()
    version = _check(api.nvrtcVersion(), "nvrtcVersion")
    options = (f"--gpu-architecture={_architecture(api, capability)}", *program.options)
    key = _key(program, options, version)
    stored = KernelCache()
    with _lock:
        if (content := stored.get(key)) is not None:
            symbols, _, code = content.partition(b"\n")
            return Image(code, json.loads(symbols))
        image = _compile(api, program, options)
        stored.put(key, json.dumps(image.symbols).encode() + b"\n" + image.code)
    return image


def _key(program: Program, options: tuple[str, ...], version: tuple[int, int]) -> str:
    parts = (program.source, program.name, options, program.headers, program.templates, version)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def _nvrtc() -> Any:
    """Return the module `cuda.bindings.nvrtc`, whose library can be loaded."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # cuda-bindings raises errors of several types if there is no library
        raise Unsupported(_MISSING.format(str(error).strip().partition("\n")[0]), ability="Launches") from error
    return nvrtc


def _architecture(api: Any, capability: tuple[int, int]) -> str:
    """Return the device's architecture or, if NVRTC is older than the device, the newest one of NVRTC.

    The driver compiles code for the latter ("compute") when it loads it.
    """
    device = capability[0] * 10 + capability[1]
    known = [int(each) for each in _check(api.nvrtcGetSupportedArchs(), "nvrtcGetSupportedArchs")]
    if device in known:
        return f"sm_{device}"
    older = [each for each in known if each < device]
    if not older:
        raise Unsupported(
            f"the installed NVRTC compiles for devices of compute capability {min(known) / 10} and higher; "
            f"this one has {device / 10}: install an older nvidia-cuda-nvrtc",
            ability="Launches",
        )
    return f"compute_{max(older)}"


def _compile(api: Any, program: Program, options: tuple[str, ...]) -> Image:
    with _created(api, program) as handle:
        for template in program.templates:
            _check(api.nvrtcAddNameExpression(handle, template.encode()), "nvrtcAddNameExpression")
        result = api.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
        if result[0]:
            log = _text(api, "ProgramLog", handle).rstrip(b"\0\n ").decode(errors="replace")
            what = "is invalid" if int(result[0]) == _FAILED else "cannot be compiled"
            raise DeviceError(
                f"the kernel source {program.name} {what} ({_name(result[0])}; options {' '.join(options)}):\n{log}",
                code=int(result[0]),
                call="nvrtcCompileProgram",
            )
        symbols = {
            template: _check(api.nvrtcGetLoweredName(handle, template.encode()), "nvrtcGetLoweredName").decode()
            for template in program.templates
        }
        code = _text(api, "CUBIN" if options[0].partition("=")[2].startswith("sm_") else "PTX", handle)
    return Image(code, symbols)


@contextmanager
def _created(api: Any, program: Program) -> Iterator[Any]:
    created = api.nvrtcCreateProgram(
        program.source.encode(),
        program.name.encode(),
        len(program.headers),
        [text.encode() for _, text in program.headers],
        [name.encode() for name, _ in program.headers],
    )
    handle = _check(created, "nvrtcCreateProgram")
    try:
        yield handle
    finally:
        api.nvrtcDestroyProgram(handle)


def _text(api: Any, which: str, handle: Any) -> bytes:
    size = _check(getattr(api, f"nvrtcGet{which}Size")(handle), f"nvrtcGet{which}Size")
    text = bytearray(size)
    _check(getattr(api, f"nvrtcGet{which}")(handle, text), f"nvrtcGet{which}")
    return bytes(text)


def _check(result: tuple[Any, ...], function: str) -> Any:
    """Return what a function returned, without its result code."""
    if result[0]:
        raise DeviceError(f"{function} returned {_name(result[0])}", code=int(result[0]), call=function)
    return result[1] if len(result) == 2 else result[1:] or None


def _name(code: Any) -> str:
    return str(getattr(code, "name", code))
