"""The CUDA library of bitsandbytes on emulated devices.

bitsandbytes computes with a library of C functions, which receive the addresses of tensors. Its Python code allocates
all memory, so it runs as on a GPU, and only the functions of the library are replaced
(`bitsandbytes_functions.py`).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch

from forebay.errors import ForebayWarning, Unsupported
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.graph_capture import run_or_capture
from forebay.interop.torch.extensions.addressed_values import memory_of_address
from forebay.interop.torch.extensions.bitsandbytes_functions import FUNCTIONS, HOST_FUNCTIONS, LibraryFunction
from forebay.interop.torch.import_hook import ImportHook

__all__ = ["BitsandbytesLibrary", "replace_bitsandbytes"]

_LOADER = "bitsandbytes.cextension"
_FUNCTIONAL = "bitsandbytes.functional"
_UTILITIES = "bitsandbytes.backends.utils"
_OPERATORS = "bitsandbytes.backends.cuda.ops"
_WITH_LIBRARY = (_LOADER, _FUNCTIONAL, "bitsandbytes.backends.cpu.ops", _OPERATORS)  # modules that keep it as `lib`
_TABLES = {  # of functions for optimizers, and the middle of their names
    "str2optimizer32bit": "32bit_grad_",
    "str2optimizer8bit": "_static_8bit_grad_",
    "str2optimizer8bit_blockwise": "_8bit_blockwise_grad_",
}
_SUFFIXES = ("fp32", "fp16", "bf16")
_CachedFunction = type(cache(len))


class BitsandbytesLibrary:
    """The library that bitsandbytes calls: its own one, except while devices are emulated.

    `own` is what bitsandbytes has loaded: a library, or an object whose functions raise its error. `host` is a library
    with the functions for the CPU. `is_emulating` tells whether the functions are those for emulated devices, and
    `compiled_with_cuda`, which bitsandbytes reads, whether there are functions for CUDA.
    """

    def __init__(self, own: Any, host: Any) -> None:
        self._own, self._host = own, host
        self.is_emulating = False

    @property
    def compiled_with_cuda(self) -> bool:
        return self.is_emulating or bool(getattr(self._own, "compiled_with_cuda", False))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "cpu" in name or name.startswith("_"):
            return getattr(self._host, name)
        function = _ReplacedFunction(self, name, getattr(self._own, name, None))
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class _ReplacedFunction:
    """A function of the library, in place of one of ctypes."""

    def __init__(self, library: BitsandbytesLibrary, name: str, own: Any) -> None:
        self._library, self._own, self.__name__ = library, own, name

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("argtypes", "restype") and self._own is not None:
            setattr(self._own, name, value)
        super().__setattr__(name, value)

    def __call__(self, *args: Any) -> Any:
        name = self.__name__
        if not self._library.is_emulating:
            if self._own is None:
                raise AttributeError(f"the library of bitsandbytes has no function {name}")
            return self._own(*args)
        plain = [each.value if isinstance(each, ctypes._SimpleCData) else each for each in args]
        if name in HOST_FUNCTIONS:
            return HOST_FUNCTIONS[name](*plain)
        if name not in FUNCTIONS:
            raise Unsupported(f"the function {name} of bitsandbytes' CUDA library is not emulated")
        _compute(FUNCTIONS[name], plain)
        return 0  # no error, from the functions that return a code


def _compute(function: LibraryFunction, args: list[Any]) -> None:
    run = function.prepare(*args)
    written = [each for at in function.written if (each := memory_of_address(args[at])) is not None]
    if not values.is_computed():
        for memory in written:
            memory.known = memory.assumed = None
        return

    def run_without_gradients() -> None:
        with torch.no_grad():
            run()

    if function.has_stream:
        run_or_capture(run_without_gradients, [memory.values for memory in written])
    else:
        run_without_gradients()


def replace_bitsandbytes(undo: ExitStack) -> None:
    """Let bitsandbytes use emulated devices, whether the program has imported it or imports it later.

    `undo` receives the calls that let it use its own library again.
    """
    log = logging.getLogger(_LOADER)
    undo.callback(log.removeFilter, _keeps_message)
    log.addFilter(_keeps_message)
    undo.callback(_stop)
    if _LOADER in sys.modules:
        _change(_replace_library, sys.modules[_LOADER])
        _change(_import_operators, sys.modules[_LOADER])
    else:
        for name, function in ((_LOADER, _replace_library), (_OPERATORS, _bind_late)):
            hook = ImportHook(name, partial(_change, function))
            undo.callback(hook.remove)
            hook.install()


def _change(function: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Call a function that changes a module. A module of an unknown version is a warning: PyTorch works without it."""
    try:
        function(module)
    except (AttributeError, ImportError, KeyError) as error:
        warnings.warn(f"bitsandbytes cannot use emulated devices: {error!r}", ForebayWarning, stacklevel=2)


def _import_operators(_loader: ModuleType) -> None:
    """Import the operators for CUDA, which bitsandbytes itself imports only if there is a CUDA device."""
    if _is_found(_OPERATORS):
        _bind_late(importlib.import_module(_OPERATORS))


def _is_found(module: str) -> bool:
    """Return True if a module exists. Older versions of bitsandbytes have their operators elsewhere."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _bind_late(operators: ModuleType) -> None:
    """Let the operators find PyTorch's functions when they are called: those of their import may be replaced."""
    replacements = {"_get_raw_stream": _current_raw_stream, "_cuda_device_of": _device_of}
    for module in (vars(operators), _names(_FUNCTIONAL)):
        module.update({name: late for name, late in replacements.items() if name in module})


def _current_raw_stream(index: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(index))


def _device_of(tensor: torch.Tensor) -> Any:
    return torch.cuda.device_of(tensor)


def _keeps_message(record: logging.LogRecord) -> bool:
    return "library load error" not in str(record.msg)


def _replace_library(loader: ModuleType) -> None:
    """Replace the library in all modules of bitsandbytes, and let it emulate."""
    library = vars(loader)["lib"]
    if not isinstance(library, BitsandbytesLibrary):
        library = BitsandbytesLibrary(library, _host_library(loader))
        for name in _WITH_LIBRARY:
            if "lib" in _names(name):
                _names(name)["lib"] = library
        for module in (_FUNCTIONAL, _OPERATORS):
            for name, middle in _TABLES.items():
                _replace_functions(_names(module).get(name, {}), middle, library)
    library.is_emulating = True


def _replace_functions(table: dict[str, Any], middle: str, library: BitsandbytesLibrary) -> None:
    """Replace the functions in a table: by optimizer, those for the types of gradients in order."""
    for key, functions in table.items():
        optimizer = {"lamb": "adam", "lars": "momentum"}.get(key, key)
        names = [each.__name__ for each in functions]
        if not all(each.startswith("c") for each in names):  # they raise an error, and have no names
            names = [f"c{optimizer}{middle}{suffix}" for suffix in _SUFFIXES[: len(functions)]]
        table[key] = tuple(library[each] for each in names)


def _host_library(loader: Any) -> Any:
    """Return a library with the functions for the CPU: the one that is loaded has them, if one is loaded."""
    if isinstance(loader.lib, getattr(loader, "ErrorHandlerMockBNBNativeLibrary", ())):
        specs = loader.get_cuda_specs
        loader.get_cuda_specs = lambda: None  # then the library for the CPU is chosen
        try:
            return loader.get_native_library()
        except (OSError, RuntimeError):  # its functions raise the error of loading
            pass
        finally:
            loader.get_cuda_specs = specs
    return loader.lib


def _stop() -> None:
    """Let bitsandbytes use its own library, and forget the emulated devices: later ones may have other properties."""
    library = _names(_LOADER).get("lib")
    if isinstance(library, BitsandbytesLibrary):
        library.is_emulating = False
    for kept in (_names(_FUNCTIONAL).get("name2qmap", {}), _names(_UTILITIES).get("_code_4bit_cache", {})):
        for key in [key for key, tensor in kept.items() if tensor.is_cuda]:
            del kept[key]
    contexts = _names(_FUNCTIONAL).get("CUBLAS_Context")
    if contexts is not None:
        contexts._instance = None
    for each in _names(_OPERATORS).values():
        if isinstance(each, _CachedFunction):
            each.cache_clear()


def _names(module: str) -> dict[str, Any]:
    """Return the names of a module; none if it is not imported."""
    return vars(sys.modules[module]) if module in sys.modules else {}
