"""Checks of arguments that the kernels of the meta device lack: types, numbers, and sizes of a few operators.

# Note [Calls that a GPU refuses]
"It would have failed on a GPU" is why programs are rehearsed, also without values. But kernels of the meta device
compute shapes only: most accept any type of elements, and numbers out of range. So the first call of an operator of
single elements, or of `_CHECKED`, with new types, numbers of dimensions and kinds of numbers is repeated on the CPU,
over zeros, with one element in place of each dimension. If the CPU refuses the call with a text about types or numbers,
it raises that error; texts about sizes are ignored, as the sizes are not those of the call. The sizes that the meta
device does not compare are compared by `_SIZES`. What is checked once costs later calls a look into a set. A check
warns of nothing, as single elements have no deviation; leaves to the program's calls what PyTorch warns of once; and
restores the random state. Rejected: to compute each new call with its own sizes, which takes seconds for large ones;
all operators, as some read out of bounds if sizes do not match others; a table of the types of each operator, which
each version changes; catch_warnings(), as warnings that the program has seen would be printed again.
Test: tests/interop/torch/kernels/test_argument_checks.py::test_wrong_calls_end_alike_with_and_without_values
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch

__all__ = ["checked_arguments", "is_refusal"]

_Call = Callable[[Sequence[Any], dict[str, Any]], Any]
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError)
_MARK = "_refuses_arguments"  # an attribute of errors
_MOST_KEYS = 4096  # of one operator: numbers that change with each call are not kept
_checking = RLock()  # what a check restores is of the process
# Texts that do not depend on the sizes of dimensions.
_TEXTS = re.compile(
    r"not implemented for|not (yet )?(be )?(support|intend|implement)|only (support|work)|do(es)?n?(n't| not) support"
    r"|dtype|scalar type|Expected a long tensor|[Tt]ype must|BoolTensor|complex|[Bb]oolean|tensors used as indices"
    r"|Integers to negative integer powers|non-positive stride|negative padding|negative values for"
    r"|n_sample <= 0|to - 1 is out of bounds|supposed to be a vector"
    r"|(must|should) be 1.?d|numel\(\) == 0|non-zero size|Dimension out of range|Expected reduce to be one of"
    r"|reduce argument must|output padding must be smaller|to be one of the following scalar types|Found dtype"
)
# Operators, beside those of single elements, whose kernels for the CPU check what they read.
_CHECKED = {
    "_foreach_norm", "_index_put_impl", "_linalg_solve_ex", "_log_softmax", "_logcumsumexp", "_softmax", "addmm",
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "baddbmm", "binary_cross_entropy", "bincount", "bmm",
    "bucketize", "cat", "complex", "convolution", "cummax", "cummin", "cumprod", "cumsum", "dot", "fill", "flip",
    "floor_divide", "gather", "glu", "hardswish", "huber_loss", "index", "index_add", "index_copy", "index_fill",
    "index_reduce", "index_select", "kthvalue", "linalg_inv_ex", "linalg_qr", "linalg_vector_norm",
    "log_sigmoid_forward", "logsumexp", "masked_fill", "masked_scatter", "max", "mean", "median", "min", "mm", "mode",
    "mse_loss", "multinomial", "nanmedian", "nansum", "native_batch_norm", "nll_loss_forward", "nonzero", "norm",
    "poisson", "polar", "prod", "put", "quantize_per_tensor", "renorm", "repeat_interleave", "roll",
    "rrelu_with_noise", "rsub", "scatter", "scatter_add", "scatter_reduce", "segment_reduce", "smooth_l1_loss", "sort",
    "std", "sum", "take", "topk", "var", "vdot",
}  # fmt: skip


def checked_arguments(operator: Any, compute: _Call) -> _Call | None:
    """Return a function that raises the error with which `compute` refuses arguments; None if none are checked."""
    schema = operator._schema
    name = schema.name.partition("::")[2]
    if torch.Tag.pointwise not in operator.tags and name.removesuffix("_") not in _CHECKED:
        return None
    checked: set[Any] = set()
    sizes = _SIZES.get(name)

    def check(args: Sequence[Any], keywords: dict[str, Any]) -> None:
        key = _key(args, keywords)
        if key not in checked:
            error = _refusal(compute, args, keywords)
            if error is not None:
                setattr(error, _MARK, True)
                raise error
            if len(checked) >= _MOST_KEYS:
                checked.clear()
            checked.add(key)
        if sizes is not None:
            sizes(*args, **keywords)

    return check


def is_refusal(error: BaseException) -> bool:
    """Return True for an error that a check has raised, and not a kernel of the meta device."""
    return hasattr(error, _MARK)


def _key(args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return what calls have in common that the CPU refuses, or not, alike."""
    found = [*map(_kind, args)]
    if keywords:
        found.append(tuple(keywords))
        found += map(_kind, keywords.values())
    return tuple(found)


def _kind(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.dim(), argument.numel() == 0
    kind = type(argument)
    if kind is float or kind is int:
        return kind, (argument > 0) - (argument < 0), -1 <= argument <= 1
    if kind is list or kind is tuple:
        first = argument[0] if argument else None
        if isinstance(first, torch.Tensor):  # lists of hundreds of tensors have few types
            return tuple({_kind(each) for each in argument})
        return tuple(map(_kind, argument))
    return argument if kind in (bool, str, torch.dtype, type(None)) else kind


def _refusal(compute: _Call, args: Sequence[Any], keywords: Mapping[str, Any]) -> Exception | None:
    """Return the error with which the CPU refuses a call, unless sizes or values may be the reason."""
    given, named = [_small(each) for each in args], {name: _small(each) for name, each in keywords.items()}
    found: list[Exception] = []

    def call(_: float) -> float:
        try:
            compute(given, named)
        except _REFUSALS as error:
            if _TEXTS.search(str(error)):
                found.append(type(error)(str(error)))
        except (AssertionError, ArithmeticError, MemoryError):
            pass
        return 0.0

    with _without_effects():
        # PyTorch gives warnings at the end of the method that Python has called: of this one, and not the program's.
        torch.zeros((), device="cpu").apply_(call)
    return found[0] if found else None


@contextmanager
def _without_effects() -> Iterator[None]:
    """Ignore warnings, and restore what a call on the CPU changes."""
    with _checking, torch.no_grad(), torch._C.DisableTorchFunction():
        state, filters, warns_always = torch.get_rng_state(), warnings.filters, torch.is_warn_always_enabled()
        warnings.filters = [("ignore", None, Warning, None, 0)]
        torch.set_warn_always(True)  # else a warning that PyTorch gives once is used up
        try:
            yield
        finally:
            torch.set_warn_always(warns_always)
            warnings.filters = filters
            torch.set_rng_state(state)


def _small(argument: Any) -> Any:
    """Return an argument with zeros of one element on the CPU in place of tensors."""
    if isinstance(argument, torch.Tensor):
        if argument.layout is not torch.strided or argument.is_nested:
            return argument
        return torch.zeros([min(each, 1) for each in argument.shape], dtype=argument.dtype, device="cpu")
    if isinstance(argument, (list, tuple)):
        if argument and isinstance(argument[0], torch.Tensor):
            return [_small(each) for each in argument]
        return argument
    if isinstance(argument, torch.Generator):
        return None
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _index_add(given: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any) -> None:
    name = "index_add_()"
    shapes = [[*each.shape] for each in (given, source)]
    if given.dim() and given.dim() == source.dim():
        at = dim % given.dim()
        if index.numel() != source.shape[at]:
            raise RuntimeError(
                f"{name}: Number of indices ({index.numel()}) should be equal to source.size(dim): "
                f"({source.shape[at]}), for dim: {dim}"
            )
        if any(one != other for place, (one, other) in enumerate(zip(*shapes, strict=True)) if place != at):
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = "
                f"{shapes[0]} source.shape = {shapes[1]}"
            )


def _index_reduce(given: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> None:
    if source.dim() and index.numel() != source.shape[dim % source.dim()]:
        raise RuntimeError(
            f"index_reduce_(): Number of indices ({index.numel()}) should be equal to source.size(dim): "
            f"({source.shape[dim % source.dim()]}), for dim: {dim}"
        )


def _put(given: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> None:
    if index.numel() != source.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel()}, index.numel() = {index.numel()}"
        )


def _multinomial(given: torch.Tensor, count: int, replacement: bool = False, **_: Any) -> None:
    if not replacement and given.dim() and count > given.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


def _lstsq(given: torch.Tensor, other: torch.Tensor, *_: Any, **__: Any) -> None:
    is_vector = other.dim() == 1 or (given.dim() - 1 == other.dim() and other.shape == given.shape[:-1])
    rows = other.shape[-1] if is_vector else other.shape[-2]
    if given.dim() >= 2 and given.shape[-2] != rows:
        raise RuntimeError(f"torch.linalg.lstsq: input.size(-2) should match other.size({-1 if is_vector else -2})")


_SIZES: dict[str, Callable[..., None]] = {
    "index_add": _index_add, "index_add_": _index_add, "index_reduce": _index_reduce,
    "index_reduce_": _index_reduce, "linalg_lstsq": _lstsq, "multinomial": _multinomial, "put_": _put,
}  # fmt: skip
