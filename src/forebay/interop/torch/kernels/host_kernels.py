"""Operators of the CPU that record what they write to large parameters: Note [Values of the host without memory]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.emulated_memory import over_storage
from forebay.interop.torch.kernels.schemas import is_view, written_arguments

__all__ = ["first_kernels", "other_kernels"]

_TENSOR = torch._C.TensorType.get()
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_MOST_STEPS = 64
_TOGETHER = 16  # numbers that the vectorized kernel of `normal_` draws together

_DRAWING = ("normal_", "uniform_")
_OVERWRITING = ("copy_", "fill_.Scalar", "fill_.Tensor", "zero_")
_WRITING = (
    *_OVERWRITING, "abs_", "add_.Scalar", "add_.Tensor", "addcdiv_", "addcmul_", "clamp_", "clamp_max_", "clamp_min_",
    "div_.Scalar", "div_.Tensor", "erfinv_", "exp_", "lerp_.Scalar", "lerp_.Tensor", "mul_.Scalar", "mul_.Tensor",
    "neg_", "pow_.Scalar", "rsqrt_", "sqrt_", "sub_.Scalar", "sub_.Tensor",
)  # fmt: skip
_FIRST = (*_DRAWING, *_OVERWRITING)  # those by which the first record may begin
# Operators whose result is not a tensor of unknown values, but a decision.
_DECIDING = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "masked_select", "nonzero", "repeat_interleave",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
_READING_NOTHING = ("empty", "is_", "new_empty", "record_stream", "set_")
_NUMBERS = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}


@cache
def first_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels that records begin with, by the name of the operator.

    There are none in a version of PyTorch that does not return its own ones.
    """
    return _made(f"aten::{name}" for name in _FIRST)


@cache
def other_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels of all other operators of the CPU that read or write memory, by the name of the operator."""
    names = {*filter(_is_host_operator, torch._C._dispatch_get_all_op_names())}
    return _made(sorted(names - {f"aten::{name}" for name in _FIRST}))


def _is_host_operator(name: str) -> bool:
    space, _, short = name.partition("::")
    if space != "aten" or short.startswith(_READING_NOTHING):
        return False
    return any(_has_kernel(name, key) for key in ("CPU", "CompositeExplicitAutogradNonFunctional"))


def _made(names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    if not hasattr(torch.library, "get_kernel"):
        return found
    for name in names:
        short, _, overload = name.removeprefix("aten::").partition(".")
        try:
            operator = getattr(getattr(torch.ops.aten, short), overload or "default")
            original = torch.library.get_kernel(name, "CPU").call_boxed
        except (AttributeError, RuntimeError):  # another version of PyTorch has no such operator
            continue
        if is_view(operator) or not any(_is_of_tensors(each) for each in operator._schema.arguments):
            continue
        called = _with_numbers(operator, original)
        kind = name.removeprefix("aten::")
        make = _drawing if kind in _DRAWING else _writing if kind in _WRITING else _reading
        found[name] = make(operator, called)
    return found


def _is_of_tensors(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _as_tensor(number: complex, others: Iterable[Any]) -> torch.Tensor:
    """Return a tensor with which an operator returns the type that it would return with the number.

    A kernel in Python receives a number, which PyTorch's own accepts as a tensor only: as one of the host without
    dimensions, whose type counts if it is of a higher category, or if the other tensor has no dimensions either.
    """
    other = next((each for each in others if isinstance(each, torch.Tensor)), None)
    dtype = _NUMBERS[type(number)]
    if other is not None:
        promoted = torch.result_type(other, number)
        if not other.dim() or promoted is not other.dtype:
            dtype = promoted
    return torch.tensor(number, dtype=dtype, device="cpu")


def _with_numbers(operator: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the kernel of an operator, also with numbers in place of tensors."""
    places = [at for at, each in enumerate(operator._schema.arguments) if each.type.isSubtypeOf(_TENSOR)]

    def call(*args: Any, **keywords: Any) -> Any:
        for at in places:
            if at < len(args) and type(args[at]) in _NUMBERS:
                args = (*args[:at], _as_tensor(args[at], args), *args[at + 1 :])
        return original(_CPU, *args, **keywords)

    return call


def _drawing(operator: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    name = operator._schema.name.removeprefix("aten::")

    def run(
        target: torch.Tensor, one: float = 0.0, other: float = 1.0, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if host_values.is_large(target) and not host_values.is_applying() and host_values.is_parameter(target):
            before = () if host_values.covers(target) else host_values.steps_of(target)
            if before is None and target.is_contiguous():
                host_values.advance_generator(generator, _draws(target, name))
                return target
            if target.is_contiguous() and (before or host_values.covers(target)):
                make, layout = host_values.advance_generator(generator, _draws(target, name)), _layout(target)

                def step(storage: torch.UntypedStorage) -> None:
                    original(over_storage(layout, storage), one, other, generator=make())

                host_values.defer(target, (*(before or ()), step), discards=not before)
                return target
        if host_values.any_deferred():
            host_values.make_real(target, name)
        original(target, one, other, generator=generator)
        return target

    return run


def _draws(target: torch.Tensor, name: str) -> int:
    """Return how many numbers of 32 bits an operator draws for a contiguous tensor."""
    count: int = target.numel()
    if name == "normal_" and count % _TOGETHER:  # the last ones are drawn again
        count += _TOGETHER if target.dtype in (torch.float32, torch.float64) else -count % _TOGETHER
    return 2 * count if target.dtype == torch.float64 else count


def _layout(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory that has the type, shape and strides of a tensor, and its place in the memory."""
    memory = torch.UntypedStorage(tensor.untyped_storage().nbytes(), device="meta")
    return over_storage(tensor, memory)


def _writing(operator: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    name = short = operator._schema.name.removeprefix("aten::")
    overwrites = name in {each.partition(".")[0] for each in _OVERWRITING}

    def run(target: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        if not host_values.is_applying() and _may_record(target, args, name) and _record(target, args, keywords):
            return target
        original(target, *args, **keywords)
        return target

    def _record(target: torch.Tensor, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Record a write. Returns False if it is to be executed, on memory that has its values then."""
        replaces = overwrites and host_values.covers(target)
        before = () if replaces else host_values.steps_of(target)
        tensors = [each for each in args if isinstance(each, torch.Tensor) and each.device.type == "cpu"]
        if before is None or any(host_values.steps_of(each) is None for each in tensors):
            read = host_values.assumed_read_of(tensors[0]) if name == "copy_" and replaces and tensors else None
            host_values.defer(target, None, discards=replaces, read=read)
            return True
        if name == "zero_" and replaces and host_values.discard(target.untyped_storage()):
            host_values.forget(target)
            return True
        taken = [_taken(each) for each in args]
        saves = host_values.is_large(target) and (
            host_values.is_parameter(target) or any(host_values.is_concerned(each) for each in tensors)
        )
        if None not in taken and ((replaces and saves) or 0 < len(before) < _MOST_STEPS):
            layout = _layout(target)

            def step(storage: torch.UntypedStorage) -> None:
                original(over_storage(layout, storage), *(each() for each in taken if each), **keywords)

            host_values.defer(target, (*before, step), discards=replaces)
            return True
        if not replaces:
            host_values.make_real(target, short)
        for each in tensors:
            host_values.make_real(each, short)
        if replaces:
            host_values.forget(target)
        return False

    return run


def _may_record(target: torch.Tensor, args: tuple[Any, ...], name: str) -> bool:
    if target.layout is not torch.strided or target.is_nested or target._is_zerotensor():
        return False
    if host_values.is_concerned(target) or (name == "zero_" and host_values.is_large(target)):
        return True
    return any(
        each.layout is torch.strided and not each.is_nested and host_values.is_concerned(each)
        for each in args if isinstance(each, torch.Tensor) and each.device.type == "cpu"
    )  # fmt: skip


def _taken(argument: Any) -> Callable[[], Any] | None:
    """Return a function that returns what an argument is now; None if this would need much memory."""
    if not isinstance(argument, torch.Tensor):
        return lambda: argument
    steps = host_values.steps_of(argument)
    if steps:
        layout = _layout(argument)

        def make() -> torch.Tensor:
            storage = torch.UntypedStorage(layout.untyped_storage().nbytes())
            for step in steps:
                step(storage)
            return over_storage(layout, storage)

        return make
    kept = argument.detach()
    if not host_values.is_unread_file(argument):
        if host_values.is_large(argument):
            return None
        kept = kept.clone()
    return lambda: kept


def _reading(operator: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of an operator that gives its arguments their values, or notes that its results have none."""
    name = operator._schema.name.removeprefix("aten::")
    decides = name in _DECIDING
    written = written_arguments(operator)

    def run(*args: Any, **keywords: Any) -> Any:
        if not host_values.any_deferred() or host_values.is_applying():
            return original(*args, **keywords)
        is_unknown = False
        for each in _host_tensors((args, [*keywords.values()])):
            if not decides and host_values.is_unknown(each):
                is_unknown = True
            else:
                host_values.make_real(each, name)
        result = original(*args, **keywords)
        if is_unknown:
            changed = [args[at] if at < len(args) else keywords.get(key) for at, key in written.items()]
            for each in _host_tensors([result, changed]):
                host_values.defer(each, None, discards=False)
        return result

    return run


def _host_tensors(argument: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of the host in an argument, also those in lists."""
    if isinstance(argument, torch.Tensor):
        if argument.device.type == "cpu" and argument.layout is torch.strided and not argument.is_nested:
            yield argument
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            yield from _host_tensors(each)
