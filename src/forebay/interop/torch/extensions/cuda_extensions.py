"""CUDA extensions that a program compiles when it runs."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import ExitStack, suppress
from functools import wraps
from types import ModuleType
from typing import Any

from forebay.errors import Unsupported
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.import_hook import ImportHook

__all__ = ["refuse_cuda_extensions"]

_MODULE = "torch.utils.cpp_extension"
_BUILD = "_jit_compile"  # of `load` and `load_inline`
_CUDA_FILES = (".cu", ".cuh", ".hip")


# Note [CUDA extensions are not compiled]
# The kernels of an extension that `torch.utils.cpp_extension` compiles need a GPU: emulated tensors have no memory
# there. The compiler would take one to two minutes for a file with PyTorch's headers before the linker or the first
# call failed, or, without a compiler, the error was one about paths of CUDA. The build is refused at once instead,
# with an error that programs expect of it, so that one with a fallback in PyTorch's operators uses that. Extensions of
# C++ are built: they compute with PyTorch's operators.
# Test: tests/interop/torch/extensions/test_cuda_extensions.py::test_cuda_extension_is_refused_before_it_is_compiled
def refuse_cuda_extensions(undo: ExitStack) -> None:
    """Let PyTorch build no CUDA extension. `undo` receives the calls that let it build them again."""
    names = NameReplacements()
    undo.callback(names.restore)

    def replace(module: ModuleType) -> None:
        if hasattr(module, _BUILD):
            names.replace(module, _BUILD, _refusing(getattr(module, _BUILD)))

    if _MODULE in sys.modules:
        replace(sys.modules[_MODULE])
    else:
        hook = ImportHook(_MODULE, replace)
        undo.callback(hook.remove)
        hook.install()


def _refusing(build: Any) -> Any:
    @wraps(build)
    def run(*args: Any, **keywords: Any) -> Any:
        given: dict[str, Any] = {}
        with suppress(TypeError):  # PyTorch's own error for the wrong arguments
            given = inspect.signature(build).bind(*args, **keywords).arguments
        with_cuda, sources = given.get("with_cuda"), given.get("sources") or ()
        files = [os.fspath(each) for each in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
        if with_cuda or (with_cuda is None and any(each.endswith(_CUDA_FILES) for each in files)):
            raise Unsupported(f"the CUDA extension {given.get('name')} cannot be built or loaded here: it needs a GPU")
        return build(*args, **keywords)

    return run
