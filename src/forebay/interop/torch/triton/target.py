"""Triton's driver for emulated cards: what Triton and Inductor ask about the card, and the launches of kernels.

# Note [Triton's driver]
Triton asks one driver for the target of its compiler, for the properties of the card and for launches. It takes the
driver from a table of backends, whose entry for NVIDIA is replaced while devices are emulated: Inductor makes a driver
from that entry in each module that it generates, so that an active driver alone would be undone. Kernels are compiled
for the target of the profile up to the code of LLVM, from which on the shared memory is known; Triton itself checks it
against that of the card. Nothing runs machine code, as a function gets the launch. It is made for the kernels of a
program, which may ask for their registers, and for all when kernels are checked, but not for those of Inductor, where
it would take half of the time. The driver reads `torch.cuda` at each call, as devices may be emulated anew. A kernel
that was decorated before works unchanged, and forgets what it has compiled when the emulation ends.
Test: tests/interop/torch/triton/test_target.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.import_hook import ImportHook
from forebay.interop.torch.processes import checked_kernels
from forebay.interop.torch.triton.resources import resources

__all__ = ["Launch", "Target", "install_target", "is_measuring", "observed", "replace_target"]

_KERNEL = re.compile(r"define .*@([\w$.]+)\(")
_BACKEND = "nvidia"
_WARP = 32
_MOST_THREADS = 1024  # of a block, on all cards
_WORD = 4  # bytes of a register
_OF_INDUCTOR = "torch._inductor."  # begins the names of the modules that Inductor generates


class Launch(NamedTuple):
    """A launch of a compiled kernel.

    Attributes
    ----------
    source : triton.compiler.ASTSource
        What was compiled: `fn` is the decorated function, `signature` and `constants` belong to its arguments.
    metadata : named tuple
        What the compiler knows of the kernel, such as `name`, `shared` and `num_warps`.
    grid : tuple of int
        The programs in each dimension, at least one.
    stream : int
        The handle of the stream.
    arguments : tuple
        All arguments of the kernel, bound, with those that are constants. An observer must not keep them: a gradient
        that something else refers to is copied by PyTorch's engine.
    """

    source: Any
    metadata: Any
    grid: tuple[int, int, int]
    stream: int
    arguments: tuple[Any, ...]


_observers: list[Callable[[Launch], object]] = []
_kernels: WeakSet[Any] = WeakSet()  # functions that have compiled kernels of the emulated cards
_measuring: list[None] = []  # an entry for each measurement that runs
_without_code: ContextVar[bool] = ContextVar(
    "_without_code", default=False
)  # True while a kernel needs no machine code


@contextmanager
def observed(observer: Callable[[Launch], object]) -> Iterator[None]:
    """Call a function with each launch in this block, except those that Triton only makes to measure a time."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def is_measuring() -> bool:
    """Return True while kernels are only launched for the time that they take."""
    return bool(_measuring)


class _Launcher:
    """The launcher of a compiled kernel, which Triton makes when it loads the kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._source, self._metadata = src, metadata
        function = getattr(src, "fn", None)  # a source in Triton's own language has none
        if function is not None and hasattr(function, "device_caches"):
            _kernels.add(function)

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: object, packed: object, launch: object,
        enter: Callable[[object], object] | None, leave: Callable[[object], object] | None, *arguments: Any,
    ) -> None:  # fmt: skip
        """Allocate what the launcher allocates, and hand the launch over."""
        scratch = _scratch(self._metadata, x * y * z, stream)
        if enter is not None:
            enter(launch)
        if x * y * z > 0 and not _measuring:
            described = Launch(self._source, self._metadata, (x, y, z), stream, arguments)
            for observer in tuple(_observers):
                observer(described)
        if leave is not None:
            leave(launch)
        del scratch


def _scratch(metadata: Any, programs: int, stream: int) -> object:
    """Return the memory for which the program has set a function by `triton.set_allocator`; None if none is needed."""
    nbytes = programs * getattr(metadata, "num_ctas", 1) * getattr(metadata, "global_scratch_size", 0)
    if not nbytes:
        return None
    allocator = import_module("triton.runtime._allocation")._allocator
    allocate = allocator.get() if hasattr(allocator, "get") else allocator
    made: object = allocate(nbytes, metadata.global_scratch_align, stream)
    return made


def _capability(device: int) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


class _Utilities:
    """The functions of the driver that Triton writes in C."""

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[None, int, int, int, int]:
        """Return the module, the function, its registers, its spills and its most threads.

        There is no module, which Triton would unload by its present driver: after the end of the emulation, too.
        Registers and spills are those of the machine code, as programs decide by them how many programs run at once.
        """
        found = resources(kernel)
        registers, spilled = (0, 0) if found is None else found
        return None, 1, registers, spilled // _WORD, _MOST_THREADS

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return the properties of the card by Triton's names."""
        found: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
            "sm_clock_rate": found.clock_rate,
            "mem_clock_rate": found.memory_clock_rate,
            "mem_bus_width": found.memory_bus_width,
        }

    def get_device_capability(self, device: int) -> tuple[int, int]:
        """Return the capability of the card."""
        return _capability(device)

    def is_stream_capturing(self, stream: int) -> bool:
        """Return True while the current stream is captured."""
        return bool(torch.cuda.is_current_stream_capturing())

    def set_printf_fifo_size(self, size: int) -> None:
        """Do nothing: a kernel prints nothing."""


class Target:
    """The driver that Triton makes for emulated cards: it has the methods of `triton.backends.driver.GPUDriver`.

    Attributes
    ----------
    utils : object
        Functions that Triton writes in C.
    launcher_cls : type
        Makes the launcher of a kernel.
    """

    def __init__(self) -> None:
        self.utils: Any = _Utilities()
        self.launcher_cls: Any = _Launcher

    @staticmethod
    def is_active() -> bool:
        """Return True: devices are emulated."""
        return True

    def get_current_device(self) -> int:
        """Return the index of the current device."""
        return int(torch.cuda.current_device())

    def set_current_device(self, device: int) -> None:
        """Change the current device."""
        torch.cuda.set_device(device)

    def get_current_stream(self, device: int) -> int:
        """Return the handle of the current stream."""
        return int(torch._C._cuda_getCurrentRawStream(device))

    def get_device_capability(self, device: int) -> tuple[int, int]:
        """Return the capability of a card."""
        return _capability(device)

    def get_current_target(self) -> Any:
        """Return what Triton's compiler compiles for: the capability of the current card."""
        major, minor = _capability(torch.cuda.current_device())
        return import_module("triton.backends.compiler").GPUTarget("cuda", major * 10 + minor, _WARP)

    def get_active_torch_device(self) -> torch.device:
        """Return PyTorch's name of the current device."""
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        """Return the module of the devices."""
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return the type in C++ of a type of Triton."""
        made: str = import_module("triton.backends.nvidia.driver").ty_to_cpp(ty)
        return made

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return a function in place of a measurement: all configurations that fit the card take the same time."""
        return _same_time

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """Return the memory that Triton clears before each measurement, as its driver for CUDA."""
        return torch.empty(256 * 1024 * 1024 // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Write that memory."""
        cache.zero_()

    def assemble_tensormap_to_arg(self, tensormaps_info: object, args: Any) -> Any:
        """Return the arguments."""
        return args


def _same_time(call: Callable[[], object], *_: object, quantiles: Sequence[float] | None = None, **__: object) -> Any:
    """Call a kernel, which must fit the card but is not executed, and return the same time for each."""
    _measuring.append(None)
    try:
        call()
    finally:
        _measuring.pop()
    return [1.0] * len(quantiles) if quantiles else 1.0


def replace_target(undo: ExitStack) -> None:
    """Let Triton compile for the emulated cards, as soon as it is imported. `undo` receives what restores it."""
    if hasattr(sys.modules.get("triton"), "jit"):  # else it is not yet executed
        install_target(undo)
        return
    hook = ImportHook("triton", lambda _: install_target(undo))
    undo.callback(hook.remove)
    hook.install()


def install_target(undo: ExitStack) -> None:
    """Let Triton, which is imported, compile for the emulated cards. `undo` receives what restores it."""
    backends: dict[str, Any] = import_module("triton.backends").backends
    before = backends.get(_BACKEND)
    if before is None:  # a build of Triton for other cards
        return
    config: Any = import_module("triton.runtime.driver").driver
    names = NameReplacements()
    undo.callback(_forget)
    undo.callback(names.restore)
    undo.callback(backends.__setitem__, _BACKEND, before)
    backends[_BACKEND] = type(before)(_without_machine_code(before.compiler), Target)
    triton: Any = import_module("triton")
    names.replace(triton, "compile", _compiling(triton.compile))
    target = Target()
    names.replace(config, "_default", target)
    names.replace(config, "_active", target)
    _forget()


def _compiling(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function in place of `triton.compile`, which Inductor calls; kernels of a program have their own."""

    @wraps(compile_kernel)
    def run(source: Any, *arguments: Any, **keywords: Any) -> Any:
        module = getattr(getattr(source, "fn", None), "__module__", None) or ""
        before = _without_code.set(module.startswith(_OF_INDUCTOR) and not checked_kernels.is_checking())
        try:
            return compile_kernel(source, *arguments, **keywords)
        finally:
            _without_code.reset(before)

    return run


def _without_machine_code(compiler: Any) -> Any:
    """Return a class of Triton's compiler that ends with the code of LLVM where no machine code is needed."""

    def add_stages(self: Any, stages: dict[str, Callable[..., Any]], *arguments: Any, **keywords: Any) -> None:
        compiler.add_stages(self, stages, *arguments, **keywords)
        if _without_code.get() and {"llir", "ptx", "cubin"} <= stages.keys():
            del stages["ptx"]
            stages["cubin"] = _no_machine_code

    def key(self: Any) -> str:
        found: str = compiler.hash(self)
        return f"{found}-without-machine-code" if _without_code.get() else found

    return type("Compiler", (compiler,), {"add_stages": add_stages, "hash": key})


def _no_machine_code(source: object, metadata: dict[str, Any]) -> bytes:
    """Return no code, and note the kernel's name, which Triton reads in the code of the stage that is left out."""
    found = _KERNEL.search(str(source))
    metadata["name"] = found[1] if found is not None else ""
    return b""


def _forget() -> None:
    """Forget what belongs to one card: its shared memory, and kernels that were compiled for it."""
    compiler: Any = import_module("triton.compiler.compiler")
    compiler.max_shared_mem.cache_clear()
    for function in tuple(_kernels):
        function.device_caches.clear()
    _kernels.clear()
