"""Tensors of emulated devices that a program still has when PyTorch has been restored: each use raises WrongState.

# Note [Tensors after the end]
A program may still have tensors of emulated devices when the patch or the emulation has ended. PyTorch itself has no
kernels for them, and where C++ code does not look for one, it would read an address that is not theirs, or ask a driver
that does not exist, and end the process. So kernels for all operators of CUDA's dispatch keys raise WrongState, and so
do the methods that read an address; operators on the CPU have other keys and stay. The device guard stays, too, as the
autograd engine asks it about gradients. What is replaced affects only such tensors, and stays until the next patch
begins: their number is not known when they are deleted, which must execute no Python code (Note [Storages are deleted
in one step]). Rejected: making the addresses valid, as a result would be wrong without an error.
Test: tests/interop/torch/devices/test_ended_tensors.py::test_each_use_after_the_end_of_a_patch_raises
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from functools import partial, wraps
from traceback import walk_tb
from typing import Any, NoReturn

import torch
import torch.autograd.graph
import torch.utils.dlpack

from forebay.errors import ForebayError
from forebay.interop.torch.devices._storage_owners import end_all, ended_memory, has_ended
from forebay.interop.torch.devices.emulated_memory import ended_tensor
from forebay.interop.torch.devices.operator_libraries import close_library, open_library
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["EndedTensors"]

_KEYS = ("CUDA", "SparseCUDA", "SparseCsrCUDA", "NestedTensorCUDA", "QuantizedCUDA")
_with_kernel = torch._C._dispatch_get_registrations_for_dispatch_key  # names of operators
_mark: Any = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)  # of builds with CUDA
# Operators with a kernel for all devices that calls no other operator, or another one before it reads the tensor.
_COMPOSITES = [("copy_", key) for key in _KEYS] + [("_to_copy", "QuantizedCUDA")]
_COMPOSITES += [
    (name, key)
    for name in ("ccol_indices", "col_indices", "crow_indices", "dense_dim", "indices", "is_coalesced", "row_indices",
                 "sparse_dim", "values")
    for key in ("SparseCUDA", "SparseCsrCUDA")
]  # fmt: skip
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_STRUCTURED = "CompositeExplicitAutogradNonFunctional"  # kernels that compare the devices of the tensors first
# Methods that call no operator with the tensor, or others before it.
_OF_TENSORS = (
    "__deepcopy__", "__dlpack__", "__dlpack_device__", "__reduce_ex__", "__repr__", "data_ptr", "numpy",
    "record_stream", "share_memory_",
)  # fmt: skip
_OF_STORAGES = (
    "__deepcopy__", "__getitem__", "__iter__", "__reduce__", "__repr__", "__setitem__", "__str__", "_byteswap",
    "_share_cuda_", "_swap_data_ptr_", "_write_file", "byteswap", "clone", "copy_", "cpu", "cuda", "data_ptr", "fill_",
    "new", "resize_", "share_memory_", "to", "tolist",
)  # fmt: skip


class EndedTensors:
    """The tensors whose emulation has ended."""

    def __init__(self) -> None:
        self._names = NameReplacements()
        self._libraries: list[torch.library.Library] = []
        self._refuses = False

    def begin(self) -> bool:
        """Refuse the use of all tensors that are alive, when PyTorch is restored.

        Return True if the device guard must stay: such tensors are alive, and PyTorch finds no device of its own.
        """
        self.stop()
        if end_all():
            gc.collect()  # of most programs, only reference cycles are left
        keys = end_all()
        if _mark is not None:
            for key in keys:
                _mark(key, str(ended_tensor("the device")))
        refused = bool(keys) and not torch.cuda.device_count()
        if refused:
            self._refuse_operators()
        self.refuse_methods()
        return refused

    def end_kind(self, kind: str) -> None:
        """Refuse the methods of all tensors whose emulation has ended while PyTorch stays patched."""
        if kind == "cuda" and end_all():
            self.refuse_methods()

    def _refuse_operators(self) -> None:
        """Refuse all operators of CUDA's dispatch keys.

        Without a driver, no tensor has them but those that have ended. With a driver, PyTorch's kernels and its guard
        must serve PyTorch's own tensors: they raise the error when they read the address.
        """
        kernels = [(f"aten::{name}", key) for name, key in _COMPOSITES]
        # In a build for CUDA, the kernels would ask the driver, and end the process where C++ code expects no error.
        kernels += [(name, key) for key in _KEYS for name in _with_kernel(key)]
        kernels += [(name, key) for name in _with_kernel(_STRUCTURED) for key in _KEYS]
        libraries: dict[str, torch.library.Library] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of replaced kernels
            for space in ("_", *(name.partition("::")[0] for name, _ in kernels)):
                if space not in libraries:
                    libraries[space] = open_library(space)
                    self._libraries.append(libraries[space])
            for key in _KEYS:
                libraries["_"].fallback(_refuse, key)
            for name, key in dict.fromkeys(kernels):
                space, _, short = name.partition("::")
                libraries[space].impl(short, partial(_refuse, name), key)

    def refuse_methods(self) -> None:
        """Refuse the methods of tensors that have ended and are alive, also while PyTorch is patched again."""
        if self._refuses or not has_ended():
            return
        self._refuses = True
        for owner, names, find in (
            (torch.Tensor, _OF_TENSORS, _key_of_part),
            (torch.UntypedStorage, _OF_STORAGES, _key_of_storage),
        ):
            for name in names:
                if hasattr(owner, name):
                    self._names.replace(owner, name, _refusing(getattr(owner, name), find))
        for module in (torch, torch._C, torch.utils.dlpack):
            for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack"):
                if hasattr(module, name):
                    self._names.replace(module, name, _refusing(getattr(module, name), _key_of_part))
        run_backward = torch.autograd.graph._engine_run_backward
        for module in (torch.autograd.graph, torch.autograd):
            self._names.replace(module, "_engine_run_backward", _backward(run_backward))

    def stop(self) -> None:
        """Restore PyTorch. Calling it again does nothing."""
        self._names.restore()
        self._refuses = False
        while self._libraries:
            close_library(self._libraries.pop())


def _key_of_tensor(tensor: torch.Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    try:
        key: int = torch._C._storage_id(tensor)
    except (RuntimeError, NotImplementedError):  # a sparse tensor, whose parts have storages
        return 0
    return key


def _key_of_part(tensor: torch.Tensor) -> int:
    """Return the key of a tensor, or of the elements of a sparse one, whose operator may raise the error itself."""
    if tensor.is_cuda and tensor.layout in _SPARSE:
        tensor = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return _key_of_tensor(tensor)


def _key_of_storage(storage: torch.UntypedStorage) -> int:
    key: int = storage._cdata
    return key


def _check(argument: Any) -> None:
    """Raise WrongState for a tensor whose emulation has ended, also in lists."""
    if isinstance(argument, torch.Tensor):
        memory = ended_memory(_key_of_tensor(argument))
        if memory is not None:
            raise ended_tensor(memory.opened.device)
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            _check(each)


def _refusing(original: Callable[..., Any], find: Callable[[Any], int]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        memory = ended_memory(find(self))
        if memory is not None:
            raise ended_tensor(memory.opened.device)
        return original(self, *args, **keywords)

    return call


def _refuse(_operator: Any, *args: Any, **keywords: Any) -> NoReturn:
    """Raise the error of an operator. A part of another one may have no tensor."""
    _check([*args, *keywords.values()])
    raise ended_tensor("CUDA devices")


def _backward(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the backward pass in the calling thread, in which the errors of kernels arrive."""

    @wraps(run_backward)
    def run(outputs: Any, *args: Any, **keywords: Any) -> Any:
        _check([*outputs, *args])
        try:
            return run_backward(outputs, *args, **keywords)
        except RuntimeError as error:
            # Other errors are of a later emulation, whose operators and functions are called from Python, and whose
            # memory may run out: an ended one allocates nothing.
            is_other = isinstance(error, (ForebayError, torch.OutOfMemoryError)) or not _is_of_engine(error)
            if is_other or "cuda" not in str(error).lower():
                raise
            raise ended_tensor("CUDA devices") from error

    return run


def _is_of_engine(error: BaseException) -> bool:
    """Return True for an error that C++ code of the autograd engine has raised, and no function in Python."""
    frames = [*walk_tb(error.__traceback__)]
    return bool(frames[-1][0].f_code.co_filename == torch.autograd.graph.__file__)
