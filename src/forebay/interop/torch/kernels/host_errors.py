"""Errors of operators in the words of PyTorch's kernels for the CPU and CUDA, where only shapes are computed.

# Note [Errors of the host]
Kernels of the meta device refuse wrong shapes with texts of their own ("a and b must have same reduction dim"), which
a user has never seen and cannot search for, and some of another class. The checks of the CPU and of CUDA are mostly one
function with one text. So a call that the meta device has refused is repeated on the CPU, with zeros in place of the
tensors: one element that is expanded, so that it needs no memory; tensors that are written have memory, which the
system provides only when it is touched. If the CPU accepts the call, the error of the meta device stays. Rejected: a
table of texts, which each version of PyTorch would change.
Test: tests/interop/torch/kernels/test_host_errors.py::test_errors_have_the_texts_of_the_host
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.devices.arguments import tensors_of
from forebay.interop.torch.kernels.schemas import written_arguments

__all__ = ["host_error", "in_words_of_cuda", "with_host_errors"]

_Call = Callable[[Sequence[Any], dict[str, Any]], Any]
_REFUSALS = (RuntimeError, IndexError, AssertionError, TypeError, ValueError)  # of kernels for the meta device
_MOST_ELEMENTS = 1 << 28  # of all tensors: the CPU would take seconds if it accepted the call
# Where CUDA's kernels have other words.
_OF_CUDA = {
    re.compile(r'^"(lt|le|gt|ge)_cpu" not'): '"compare_cuda" not',
    re.compile(r'^"(log_)?softmax_lastdim_kernel_impl" not'): '"host_softmax" not',
    re.compile(r'^"GeluKernelImpl" not'): '"GeluCUDAKernelImpl" not',
    re.compile(r'^"log_sigmoid_cpu" not'): '"log_sigmoid_forward_cuda" not',
    re.compile(r'^"cumsum_out_cpu" not'): '"cumsum_cuda" not',
    re.compile(r'^"(max_all|min_all|digamma)" not'): r'"\1_cuda" not',
    re.compile(r'^"(\w+?)(_vml)?_cpu" not'): r'"\1_cuda" not',
    re.compile(r"expected m1 and m2 to have the same dtype"): "expected mat1 and mat2 to have the same dtype",
    re.compile(r"size mismatch \(got input: (\[[\d, ]+\]) , target: (\[[\d, ]+\])\)?"): (
        r"input and target batch or spatial sizes don't match: target \2, input \1"
    ),
}


def with_host_errors(operator: Any, call: _Call) -> _Call:
    """Return a function that runs an operator of tensors without values by `call`: Note [Errors of the host]."""
    written = written_arguments(operator)

    def run(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        try:
            return call(args, keywords)
        except _REFUSALS as error:
            if isinstance(error, NotImplementedError) or "meta tensor" in str(error):  # values decide the size
                raise
            changed = [args[at] if at < len(args) else keywords.get(key) for at, key in written.items()]
            raise (host_error(call, args, keywords, changed) or error) from None

    return run


def host_error(
    call: _Call, args: Sequence[Any], keywords: Mapping[str, Any],
    written: Sequence[Any] = (),
) -> Exception | None:  # fmt: skip
    """Return the error with which the CPU refuses the arguments of a call, or None if it accepts them.

    Parameters
    ----------
    call : callable
        Calls the operator with positional and named arguments.
    args : sequence
        The positional arguments, whose tensors have no values.
    keywords : mapping of str to Any
        The named ones.
    written : sequence, optional
        Those that the operator writes.
    """
    if sum(each.numel() for each in tensors_of([*args, *keywords.values()])) > _MOST_ELEMENTS:
        return None
    kept = {id(each) for each in tensors_of(list(written))}
    try:
        with torch.no_grad():
            call([_on_host(each, kept) for each in args], {key: _on_host(each, kept) for key, each in keywords.items()})
    except MemoryError:
        return None
    except _REFUSALS as error:
        if isinstance(error, NotImplementedError):
            return None
        return in_words_of_cuda(error)
    return None


def in_words_of_cuda(error: Exception) -> Exception:
    """Return an error of the CPU with the text of CUDA's kernel, as far as it is known."""
    text = str(error)
    for ours, theirs in _OF_CUDA.items():
        text = ours.sub(theirs, text)
    return type(error)(text)


def _on_host(argument: Any, written: set[int]) -> Any:
    """Return an argument with tensors of the CPU in place of those without values."""
    if isinstance(argument, torch.Tensor):
        if id(argument) in written:  # also in place of the user's, which must not change where the call fails
            return torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device="cpu")
        if argument.device.type == "cpu":
            return argument
        return torch.zeros((), dtype=argument.dtype, device="cpu").expand(argument.shape)
    if isinstance(argument, (list, tuple)):
        return [_on_host(each, written) for each in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument
