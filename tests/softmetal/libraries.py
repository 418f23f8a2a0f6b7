"""Libraries of MSL, their functions, and compute pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import constants as k
from .control import control
from .foundation import NSURL, NSError
from .msl import compiler
from .objects import Descriptor, Labeled, NSObject, autoreleased, instance, properties

DOMAIN = "MTLLibraryErrorDomain"
_NEW_LIBRARY = "newLibraryWithSource_options_error_"
_FILE = b"MTLB of tests/softmetal\n"
_VERSIONS = {  # of MSL, and the first macOS that knows them
    k.MTLLanguageVersion1_1: (10, 11, 0),
    k.MTLLanguageVersion1_2: (10, 12, 0),
    k.MTLLanguageVersion2_0: (10, 13, 0),
    k.MTLLanguageVersion2_1: (10, 14, 0),
    k.MTLLanguageVersion2_2: (10, 15, 0),
    k.MTLLanguageVersion2_3: (11, 0, 0),
    k.MTLLanguageVersion2_4: (12, 0, 0),
    k.MTLLanguageVersion3_0: (13, 0, 0),
    k.MTLLanguageVersion3_1: (14, 0, 0),
    k.MTLLanguageVersion3_2: (15, 0, 0),
    k.MTLLanguageVersion4_0: (26, 0, 0),
}


def _newest_version() -> int:
    return max(version for version, macos in _VERSIONS.items() if macos <= control.machine.macos)


@properties(
    fastMathEnabled=True,
    languageVersion=k.MTLLanguageVersion3_1,
    libraryType=0,
    mathMode=k.MTLMathModeFast,
    mathFloatingPointFunctions=0,
    optimizationLevel=0,
    preprocessorMacros=None,
    preserveInvariance=False,
    allowReferencingUndefinedSymbols=False,
    maxTotalThreadsPerThreadgroup=0,
    enableLogging=False,
)
class MTLCompileOptions(Descriptor):
    """Options of the compiler; those of floating point have no effect on a CPU, which is always precise."""

    __slots__ = ()


class MTLFunction(Labeled):
    """A kernel of a library."""

    __slots__ = ("_device", "_kernel", "_library")

    def __init__(self, device: Any, library: Any, kernel: Any) -> None:
        super().__init__()
        self._device, self._library, self._kernel = device, library, kernel

    def device(self) -> Any:
        return self._device

    def name(self) -> str:
        return self._kernel.name

    def functionType(self) -> int:
        return k.MTLFunctionTypeKernel


class MTLLibrary(Labeled):
    """Compiled MSL."""

    __slots__ = ("_compiled", "_device")

    def __init__(self, device: Any, compiled: compiler.CompiledLibrary) -> None:
        super().__init__()
        self._device, self._compiled = device, compiled

    def device(self) -> Any:
        return self._device

    def functionNames(self) -> tuple[str, ...]:
        return tuple(self._compiled.kernels)

    def type(self) -> int:
        return k.MTLLibraryTypeExecutable

    def newFunctionWithName_(self, name: str) -> MTLFunction | None:
        kernel = self._compiled.kernels.get(name)
        return None if kernel is None else MTLFunction(self._device, self._compiled, kernel)


class MTLBinding(NSObject):
    """An argument of a pipeline's kernel."""

    __slots__ = ("_binding",)

    def __init__(self, binding: compiler.Binding) -> None:
        super().__init__()
        self._binding = binding

    def name(self) -> str:
        return self._binding.name

    def index(self) -> int:
        return self._binding.index

    def type(self) -> int:
        in_group = self._binding.space == "threadgroup"
        return k.MTLBindingTypeThreadgroupMemory if in_group else k.MTLBindingTypeBuffer

    def access(self) -> int:
        return k.MTLBindingAccessReadOnly if self._binding.read_only else k.MTLBindingAccessReadWrite

    def isUsed(self) -> bool:
        return True

    def isArgument(self) -> bool:
        return True

    def bufferDataSize(self) -> int:
        return self._binding.size

    def bufferAlignment(self) -> int:
        return self._binding.alignment


class MTLComputePipelineReflection(NSObject):
    """The arguments of a pipeline's kernel."""

    __slots__ = ("_bindings",)

    def __init__(self, bindings: list[compiler.Binding]) -> None:
        super().__init__()
        self._bindings = bindings

    def bindings(self) -> tuple[MTLBinding, ...]:
        return tuple(MTLBinding(each) for each in self._bindings)


@properties(
    computeFunction=None,
    maxTotalThreadsPerThreadgroup=0,
    supportIndirectCommandBuffers=False,
    threadGroupSizeIsMultipleOfThreadExecutionWidth=False,
    label=None,
)
class MTLComputePipelineDescriptor(Descriptor):
    """The descriptor of a pipeline."""

    __slots__ = ()


class MTLComputePipelineState(Labeled):
    """A kernel that can be dispatched."""

    __slots__ = ("_device", "_indirect", "_kernel", "_library", "_multiple", "_threads")

    def __init__(self, device: Any, function: MTLFunction, values: dict[str, Any]) -> None:
        super().__init__()
        self._device, self._kernel, self._library = device, function._kernel, function._library
        self._threads = values.get("maxTotalThreadsPerThreadgroup") or device._gpu.threads
        self._indirect = bool(values.get("supportIndirectCommandBuffers"))
        self._multiple = bool(values.get("threadGroupSizeIsMultipleOfThreadExecutionWidth"))

    def device(self) -> Any:
        return self._device

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self._threads

    def threadExecutionWidth(self) -> int:
        return 32

    def staticThreadgroupMemoryLength(self) -> int:
        if self._kernel.static_memory:
            control.refuse("staticThreadgroupMemoryLength of a library with threadgroup variables")
        return 0

    def supportIndirectCommandBuffers(self) -> bool:
        return self._indirect

    def _reflection(self) -> Any:
        return autoreleased(MTLComputePipelineReflection(self._kernel.bindings), "reflection")


def new_library(device: Any, source: str, options: Any) -> tuple[MTLLibrary | None, NSError | None]:
    """Compile a source."""
    if source is None:
        control.violated("nil", "the source is nil")
    values = instance(options, MTLCompileOptions, "options")._values if options is not None else {}
    version = values.get("languageVersion", _newest_version())
    if version not in _VERSIONS:
        control.violated("options", f"languageVersion is {version:#x}")
    if control.machine.macos < _VERSIONS[version]:
        text = f"languageVersion {version:#x} is not supported by macOS {control.machine.macos}"
        return None, autoreleased(NSError(DOMAIN, k.MTLLibraryErrorUnsupported, text), _NEW_LIBRARY)
    macros = {str(name): str(value) for name, value in (values.get("preprocessorMacros") or {}).items()}
    try:
        compiled = compiler.build(source, macros, (version >> 16) * 100 + (version & 0xFFFF) * 10)
    except compiler.CompileError as error:
        failure = NSError(DOMAIN, k.MTLLibraryErrorCompileFailure, str(error).strip())
        return None, autoreleased(failure, _NEW_LIBRARY)
    return MTLLibrary(device, compiled), None


def new_library_of_file(device: Any, url: Any) -> tuple[MTLLibrary | None, NSError | None]:
    """Load a file that `metallib` has written."""
    try:
        content = Path(instance(url, NSURL, "url").path()).read_bytes()
    except OSError as error:
        content, text = b"", str(error)
    else:
        text = "Invalid library file"
    if content.startswith(_FILE):
        return new_library(device, content.removeprefix(_FILE).decode(), None)
    return None, autoreleased(NSError(DOMAIN, k.MTLLibraryErrorUnsupported, text), "newLibraryWithURL_error_")


def metallib(source: str) -> bytes:
    """Return a library of the stand-in, in place of what Apple's tools compile: the source behind a mark."""
    return _FILE + source.encode()


def new_pipeline(device: Any, function: Any, **values: Any) -> tuple[MTLComputePipelineState | None, NSError | None]:
    """Make a pipeline of a function."""
    instance(function, MTLFunction, "function")
    if function._device is not device:
        control.violated("device", "the function belongs to another device")
    return MTLComputePipelineState(device, function, values), None


def new_pipeline_from_descriptor(device: Any, descriptor: Any) -> Any:
    """Make a pipeline as a descriptor says."""
    values = dict(instance(descriptor, MTLComputePipelineDescriptor, "descriptor")._values)
    values.pop("label", None)
    return new_pipeline(device, values.pop("computeFunction", None), **values)
