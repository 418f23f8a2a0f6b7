"""PyTorch names that need a tensor library, a compiler or a GPU: PyTorch's signature, and an error with the reason.

`REASONS` lists them; docs/differences.md repeats the list for users.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from forebay.errors import Unsupported

__all__ = ["REASONS", "unsupported", "unsupported_class", "unsupported_error"]

# By module or name: why it cannot work here, and an alternative.
REASONS = {
    "forebay.cuda._compile_kernel": (
        "CUDA C needs NVRTC and a GPU. Use Numba's or CuPy's kernels over the same memory."
    ),
    "forebay.cuda._memory_viz.profile_plot": "it reads profiles of torch.profiler. Use trace_plot with a snapshot.",
    "forebay.cuda._memory_viz._profile_to_snapshot": "it reads profiles of torch.profiler.",
    "forebay.cuda.amp": "forebay has no operators and no gradients. Pass enabled=False, or use PyTorch's.",
    "forebay.cuda.current_blas_handle": (
        "forebay has no operators and so no cuBLAS handle. Use CuPy's or PyTorch's over the same memory."
    ),
    "forebay.cuda.current_solver_handle": (
        "forebay has no operators and so no cuSOLVER handle. Use CuPy's or PyTorch's over the same memory."
    ),
    "forebay.cuda.gds": "it needs NVIDIA's cuFile. Read into forebay.empty_pinned() and copy from there.",
    "forebay.cuda.green_contexts": (
        "only a GPU can partition its multiprocessors. Use forebay.cuda.Stream(priority=...) to prioritize work."
    ),
    "forebay.cuda.jiterator": (
        "CUDA C needs NVRTC and a GPU. Use numpy.frompyfunc on the CPU device, or CuPy's ElementwiseKernel over the "
        "same memory."
    ),
    "forebay.cuda.tunable": "forebay has no matrix products to tune. Tune them in PyTorch.",
    "forebay.mps.compile_shader": (
        "Metal is required to compile and run a shader. Compute with NumPy in host memory, or with MLX or PyTorch on a "
        "Mac."
    ),
    "forebay.mps.load_metallib": (
        "Metal is required to load and run a library. Compute with NumPy in host memory, or with MLX or PyTorch on a "
        "Mac."
    ),
}


def unsupported_error(name: str) -> Unsupported:
    """Return the error of a full name, with the reason of the name or of the module that it is in."""
    return Unsupported(f"{name} is not supported: {_reason(name)}")


def unsupported(module: str, signature: str) -> Callable[..., Any]:
    """Return a function with a signature such as "name(x, *, y=None)" that raises Unsupported.

    Arguments that do not fit the signature raise TypeError.

    >>> unsupported("forebay.cuda", "current_blas_handle()")()
    Traceback (most recent call last):
    forebay.Unsupported: forebay.cuda.current_blas_handle is not supported: forebay has no operators and so no cuBLAS \
handle. Use CuPy's or PyTorch's over the same memory.
    """
    return _function(module, "", signature)


def unsupported_class(module: str, name: str, *members: str) -> Any:
    """Return a class whose members, given as signatures including `__init__`, all raise Unsupported.

    A signature may follow a decorator: "@staticmethod create(x=1)", "@property size(self)".
    """
    reason = _reason(f"{module}.{name}")
    functions: dict[str, Any] = {}
    for member in members:
        decorator, _, signature = member.rpartition("@")[2].partition(" ") if member[0] == "@" else ("", "", member)
        function = _function(module, f"{name}.", signature)
        made = {"": function, "staticmethod": staticmethod(function), "classmethod": classmethod(function)}
        functions[function.__name__] = property(function) if decorator == "property" else made[decorator]
    doc = _docstring(functions.get("__init__"), reason)
    return type(name, (), {"__module__": module, "__doc__": doc, **functions})


def _reason(name: str) -> str:
    prefix = name
    while prefix not in REASONS:
        prefix, dot, _ = prefix.rpartition(".")
        if not dot:
            raise LookupError(f"{name} has no reason in forebay.names.unsupported.REASONS")
    return REASONS[prefix]


def _function(module: str, owner: str, signature: str) -> Callable[..., Any]:
    name = signature.partition("(")[0]
    full_name = f"{module}.{owner}{name}".removesuffix(".__init__")
    scope: dict[str, Any] = {"__name__": module, "_error": lambda: unsupported_error(full_name)}
    exec(f"def {signature}:\n    raise _error()", scope)  # noqa: S102 -- only literals of this package, as namedtuple does
    function: Callable[..., Any] = scope[name]
    function.__qualname__ = owner + name
    function.__doc__ = _docstring(function, _reason(full_name))
    return function


def _docstring(function: Callable[..., Any] | None, reason: str) -> str:
    parameters = [] if function is None else list(inspect.signature(function).parameters.values())
    lines = [
        f"{parameter.name} : object{'' if parameter.default is parameter.empty else ', optional'}\n    Not used."
        for parameter in parameters
        if parameter.name not in ("self", "cls")
    ]
    summary = f"Raise Unsupported: {reason}"
    return "\n".join([summary, *(["", "Parameters", "----------", *lines] if lines else [])])
