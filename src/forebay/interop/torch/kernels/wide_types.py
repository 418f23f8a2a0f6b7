"""Operators over the values of halves: in single precision where the CPU's kernel refuses halves, or crawls on them.

# Note [Halves in wide types]
CUDA's kernels serve float16, bfloat16 and complex32 where some of the CPU's refuse them, and others take a hundred
times as long as in single precision. So every kernel of the emulated devices calls PyTorch's operators over values
through `on_host`: it tries the CPU's kernel, and if that refuses the type, calls it with copies in single precision,
whose results are rounded once. This is what CUDA's kernels do in registers. The types and layouts of the results are
those of the meta kernel for the original types, so that they do not depend on the mode. The copies are memory of the
host: allocations of the device are the same. What CUDA's kernels refuse, too, still raises the CPU's error.
Rejected: a list of the operators that the CPU refuses, as it would miss those of the next version of PyTorch; to time
both and choose, as the values would depend on the load of the machine.
Test: tests/interop/torch/kernels/test_half_operators.py::test_operators_of_cuda_compute_halves
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import tensors_of
from forebay.interop.torch.kernels.argument_checks import checked_arguments
from forebay.interop.torch.kernels.host_errors import in_words_of_cuda, with_host_errors
from forebay.interop.torch.kernels.missing_on_host import with_substitute
from forebay.interop.torch.kernels.scratch_memory import is_dense

__all__ = ["on_host", "over_values"]

_Call: TypeAlias = Callable[[Sequence[Any], dict[str, Any]], Any]
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_REFUSAL = re.compile(
    r"not implemented for '(Half|BFloat16|ComplexHalf)'|not supported on CPU|on CPU does not support"
    r"|doesn't support tensors of type|to be a floating-point or complex tensor, but got (Half|BFloat16|ComplexHalf)"
)
# Operators whose kernels for CUDA refuse halves, too: cuSOLVER's, and most special functions.
_REFUSED_BY_CUDA = re.compile(
    r"_?linalg_|_?cholesky|geqrf|lu_|orgqr|ormqr|polar|special_|triangular_solve|_cdist_|_pdist_|_ctc_loss"
)
# Of complex halves, CUDA's kernels refuse also these.
_COMPLEX_REFUSED_BY_CUDA = {
    "_logcumsumexp", "_trilinear", "addbmm", "addcdiv", "addmv", "channel_shuffle", "cumprod", "cumsum", "exp2",
    "expm1", "eye", "flip", "gather", "im2col", "linspace", "log10", "log1p", "log2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "masked_scatter", "mean", "nan_to_num", "pixel_shuffle",
    "pixel_unshuffle", "put", "reciprocal", "reflection_pad1d", "replication_pad1d", "replication_pad2d", "scatter",
    "scatter_add", "scatter_reduce", "silu", "sinc", "take",
}  # fmt: skip
# oneDNN computes these fast if the processor has instructions for the type, otherwise plain loops do.
_PRODUCTS = {
    "_addmm_activation", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "addmm", "baddbmm", "bmm", "convolution",
    "convolution_backward", "mm",
}  # fmt: skip
# Others that take three times as long in a half (benchmarks/bench_torch_halves.py), or round intermediate results.
_SLOW = {
    "_embedding_bag_dense_backward", "addmv", "addr", "amax", "argmax", "col2im", "dot", "grid_sampler_2d",
    "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward", "linalg_vector_norm",
    "native_group_norm", "native_group_norm_backward", "norm", "vdot",
}  # fmt: skip


def over_values(operator: Any) -> Callable[..., Any]:
    """Return the operator for tensors over values, in wide types where the CPU's kernel needs them."""
    run = on_host(operator, lambda args, keywords: operator(*args, **keywords))
    return lambda *args, **keywords: run(args, keywords)


def on_host(operator: Any, call: _Call) -> _Call:
    """Return a function that runs an operator over values by `call`: Note [Halves in wide types]."""
    name = operator._schema.name.partition("::")[2]
    short = name.removesuffix("_")
    is_attention = short.startswith("_scaled_dot_product_")
    is_refused, is_refused_complex = bool(_REFUSED_BY_CUDA.match(short)), short in _COMPLEX_REFUSED_BY_CUDA

    call = with_substitute(operator, call)
    in_words = with_host_errors(operator, call)

    def compute(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        arguments = (*args, *keywords.values())
        found = _types(arguments)
        narrow = found & _WIDE.keys()
        if not narrow and not _asked(arguments):
            return call(args, keywords)
        # Mixed types are refused as on a GPU. The sums of attention are in single precision.
        types = found | {each for each in arguments if isinstance(each, torch.dtype)}  # also those of the results
        is_uniform = len(types) == 1 or (is_attention and len(narrow) == 1)
        if is_uniform and (short in _SLOW or (short in _PRODUCTS and not _has_instructions(*narrow))):
            return _in_wide_types(operator, call, args, keywords, is_uniform=not is_attention)
        try:
            return call(args, keywords)
        except RuntimeError as error:
            if is_refused or (is_refused_complex and torch.complex32 in narrow):
                raise
            if narrow and not _REFUSAL.search(str(error)):  # such as an error of mixed types
                raise
            # In this block, whose end deletes the error: its frames refer to the caller's tensors.
            try:
                return _in_wide_types(operator, call, args, keywords)
            except RuntimeError:
                raise error from None

    def in_words_of_gpu(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        try:
            return compute(args, keywords)
        except RuntimeError as error:
            found = in_words_of_cuda(error)
            if str(found) == str(error):
                raise
            raise found from None

    check = checked_arguments(operator, in_words_of_gpu)

    def run(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        if values.is_computed():
            return in_words_of_gpu(args, keywords)
        if check is not None:
            check(args, keywords)
        return in_words(args, keywords)

    return run


@cache
def _has_instructions(dtype: torch.dtype) -> bool:
    """Return True if oneDNN computes products of a type directly on this processor."""
    name = {torch.float16: "_is_mkldnn_fp16_supported", torch.bfloat16: "_is_mkldnn_bf16_supported"}.get(dtype)
    try:
        return name is None or bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):  # a build without oneDNN
        return False


def _types(arguments: Sequence[Any]) -> set[torch.dtype]:
    """Return the types of all tensors of numbers that are no integers."""
    found = set()
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if each.dtype.is_floating_point or each.dtype.is_complex:
                found.add(each.dtype)
        elif isinstance(each, (list, tuple)):
            found |= _types(each)
    return found


def _asked(arguments: Sequence[Any]) -> set[torch.dtype]:
    """Return the halves that are arguments themselves, as the type of a result."""
    return {each for each in arguments if isinstance(each, torch.dtype) and each in _WIDE}


class _Copies:
    """Copies of arguments in wide types."""

    def __init__(self) -> None:
        self._wide: dict[int, torch.Tensor] = {}  # by the id of the original
        self.originals: dict[int, torch.Tensor] = {}  # by the id of the copy

    def widen(self, argument: Any) -> Any:
        """Return an argument with copies in place of halves."""
        if isinstance(argument, torch.Tensor):
            if argument.dtype not in _WIDE:
                return argument
            wide = self._wide.get(id(argument))
            if wide is None:
                wide = self._wide[id(argument)] = argument.to(_WIDE[argument.dtype])
                self.originals[id(wide)] = argument
            return wide
        if isinstance(argument, torch.dtype):
            return _WIDE.get(argument, argument)
        if isinstance(argument, (list, tuple)):
            return [self.widen(each) for each in argument]
        return argument


def _in_wide_types(
    operator: Any, call: _Call, args: Sequence[Any], keywords: dict[str, Any], *, is_uniform: bool = False
) -> Any:
    """Return the results of an operator that computes with copies, rounded, and round what it writes.

    If all types of arguments and results are one, the meta kernel need not tell them: some take longer than the result.
    """
    copies = _Copies()
    expected = [] if is_uniform else _expected(call, args, keywords)
    given, named = [copies.widen(each) for each in args], {key: copies.widen(each) for key, each in keywords.items()}
    for at, argument in enumerate(operator._schema.arguments):
        if argument.name == "half_to_float":  # of softmax: the copies are in single precision already
            if at < len(given):
                given[at] = False
            else:
                named[argument.name] = False
    results = call(given, named)
    for at, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            wide = given[at] if at < len(given) else named.get(argument.name)
            for each in tensors_of(wide):
                if id(each) in copies.originals:
                    _write(copies.originals[id(each)], each)
    arguments = (*args, *keywords.values())
    narrow = min((_types(arguments) & _WIDE.keys()) or _asked(arguments), key=str)
    return _round(results, copies, iter(expected), narrow)


def _expected(call: _Call, args: Sequence[Any], keywords: dict[str, Any]) -> list[torch.Tensor]:
    """Return the results of the meta kernel, or an empty list if it cannot know them."""
    try:
        return [
            *tensors_of(call([_as_meta(each) for each in args], {k: _as_meta(each) for k, each in keywords.items()}))
        ]
    except (RuntimeError, TypeError, ValueError):
        return []


def _as_meta(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.to("meta")
    if isinstance(argument, torch.Generator):
        return None
    if isinstance(argument, torch.device):
        return torch.device("meta")
    return [_as_meta(each) for each in argument] if isinstance(argument, (list, tuple)) else argument


def _write(original: torch.Tensor, wide: torch.Tensor) -> None:
    """Round what an operator has written, also if it has given the tensor another shape."""
    if original.shape != wide.shape:
        original.resize_(wide.shape)
    original.copy_(wide)


def _round(result: Any, copies: _Copies, expected: Iterator[torch.Tensor], narrow: torch.dtype) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_round(each, copies, expected, narrow) for each in result)
    if not isinstance(result, torch.Tensor):
        return result
    like = next(expected, None)
    original = copies.originals.get(id(result))
    if original is not None:
        return original
    if like is None:
        wide = _WIDE[narrow]
        dtype = narrow if result.dtype == wide else torch.complex32 if result.dtype == torch.complex64 else result.dtype
        return result.to(dtype)
    if result.layout is not torch.strided or like.shape != result.shape or not is_dense(like):
        return result.to(like.dtype)
    if result.dtype == like.dtype and result.stride() == like.stride():
        return result
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(result)
