"""Element-wise kernels from CUDA C: parsed and checked here, but only a GPU can run them (`torch.cuda.jiterator`)."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from forebay import backends
from forebay.names.unsupported import unsupported_error

__all__: list[str] = []

_MAX_INPUTS = 8
_TEMPLATE = re.compile(
    r"\s*template\s*<.+>\s*\w+\s+(?P<name>\w+)\s*\(.+\)\s*\{.+\}\s*",
    re.DOTALL,
)


class _Kernel:
    """A parsed kernel. A call checks the arguments as PyTorch does, then raises Unsupported."""

    def __init__(self, code: str, by_reference: bool, outputs: int, defaults: dict[str, Any]) -> None:
        parsed = _TEMPLATE.match(code)
        if parsed is None:
            raise Exception(f"Couldn't parse code, please check correctness:\n {code}")  # noqa: TRY002 -- PyTorch's type
        self.code_string, self.kernel_name = code, parsed["name"]
        self.return_by_ref, self.num_outputs, self.kwargs_dict = by_reference, outputs, defaults

    def __call__(self, *tensors: Any, **kwargs: Any) -> NoReturn:
        driver = backends.drivers().get("cuda")
        if driver is None or not driver.count():
            raise AssertionError("Jiterator is only supported on CUDA and ROCm GPUs, none are available.")
        if len(tensors) > _MAX_INPUTS:
            raise AssertionError(f"jiterator only supports up to {_MAX_INPUTS} tensor inputs, got {len(tensors)}")
        for key in kwargs:
            if key not in self.kwargs_dict:
                raise KeyError(f"{key} is not declared in function definition")
        raise unsupported_error(f"{__name__}.{self.kernel_name}")


def _create_jit_fn(code_string: str, **kwargs: Any) -> _Kernel:
    """Return a kernel with one output, which it returns; `kwargs` are defaults of its last parameters.

    Raises Exception if the code is not a C++ template (`torch.cuda.jiterator._create_jit_fn`).
    """
    return _Kernel(code_string, False, 1, kwargs)


def _create_multi_output_jit_fn(code_string: str, num_outputs: int, **kwargs: Any) -> _Kernel:
    """Return a kernel that writes its outputs by reference (`torch.cuda.jiterator._create_multi_output_jit_fn`)."""
    return _Kernel(code_string, True, num_outputs, kwargs)
