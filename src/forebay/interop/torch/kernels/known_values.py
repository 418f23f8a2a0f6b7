"""Values that are known although none are computed: constants of a few elements, and what is computed from them.

# Note [Known values]
A program without values can read masks, lengths and labels that come from the host, but not results of its model. The
known values of a memory are a small storage on the CPU (32 KiB at most), of the memory and not of a tensor, as views
share it. An operator whose tensors are all known is computed on the CPU as well; any other makes what it writes
unknown, before it runs, so that an error leaves nothing that is wrong. Random numbers are never known. A value that is
taken for known although it is not would lead the program another way than on a GPU, without an error; one that is
forgotten only raises DataDependent. Rejected: tracking elements, as masks are written by views and indices of any form.
Test: tests/interop/torch/kernels/test_known_values.py::test_unknown_values_are_not_taken_for_known_ones
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import NOTHING, Elements, assumed, note_elements
from forebay.interop.torch.assumptions.rules import rule_of
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.emulated_memory import (
    accessed_memory,
    adopt,
    check_host,
    memory_of,
    open_torch_device,
    over_storage,
)  # fmt: skip
from forebay.interop.torch.kernels.generic import caller_of, replace_values
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.processes import unread_values

__all__ = ["forget_values", "keep_known", "known_values", "with_known_values"]

_KNOWN_BYTES = 32 << 10  # of a memory whose values are kept
_FAILED = object()
_NEVER_KNOWN = (torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view)  # random or resized
_MOST_REPEATS = 1 << 16  # elements of a result whose size depends on values
_Kernel = Callable[..., Any]


def known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor of the device, which share its known memory, or None if they are unknown.

    All elements of a tensor of any size that was filled with one number are known, too.
    """
    known = accessed_memory(tensor).known
    if known is not None:
        return _over_known(tensor, known)
    found = assumed(tensor)
    if not found.is_exact:
        return None
    return torch.tensor(found.value, dtype=tensor.dtype).expand(tensor.shape)


def _over_known(tensor: torch.Tensor, known: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor over known values, conjugated or negated as that of the device."""
    found = over_storage(tensor, known)
    if tensor.is_conj():
        found = found.conj()
    return torch._neg_view(found) if tensor.is_neg() else found


def keep_known(tensor: torch.Tensor, source: torch.Tensor | None) -> None:
    """Note the values that were written to a tensor of the device: a tensor on the CPU, or None if they are unknown.

    If the tensor is a part of an unknown memory, the memory stays unknown.
    """
    memory = accessed_memory(tensor)
    before = assumed(tensor)
    if source is None or memory.nbytes > _KNOWN_BYTES:
        memory.known = memory.assumed = None
        if source is not None:
            note_elements(tensor, assumed(source).as_type(tensor.dtype), before)
        return
    if memory.known is None:
        if not tensor.numel() or tensor.numel() * tensor.itemsize != memory.nbytes:
            note_elements(tensor, assumed(source).as_type(tensor.dtype), before)
            return
        memory.known = torch.UntypedStorage(memory.nbytes)
    _over_known(tensor, memory.known).copy_(source)


def forget_values(argument: Any, find: Callable[[torch.Tensor], EmulatedMemory] = accessed_memory) -> None:
    """Note that the values of tensors are unknown from now on, as something else was written to the memory."""
    if isinstance(argument, torch.Tensor):
        if argument.is_cuda:
            memory = find(argument)
            memory.known = memory.assumed = None
    elif isinstance(argument, (list, tuple)):
        for each in argument:
            forget_values(each, find)


def with_known_values(operator: Any, kernel: _Kernel) -> _Kernel:
    """Return the kernel of an operator, which computes known values from known ones, if no others are computed.

    `kernel` is the operator's for emulated devices; the CPU computes the operator, too.
    """
    written = written_arguments(operator)
    names = [argument.name for argument in operator._schema.arguments]
    rule = rule_of(operator)
    only_written = {argument.name for argument in operator._schema.arguments if argument.is_out}
    call = caller_of(operator)
    name = operator._schema.name.partition("::")[2]
    if any(tag in operator.tags for tag in _NEVER_KNOWN) or name.startswith(("empty", "new_empty")):
        is_written = torch.Tag.inplace_view not in operator.tags
        return _forgetting(kernel, written, accessed_memory if is_written else memory_of)

    def run(*args: Any, **keywords: Any) -> Any:
        if values.is_computed():
            return kernel(*args, **keywords)
        given = _given(args, keywords, written)
        copies: dict[int, torch.Tensor] = {}
        if not _are_known(args, keywords, only_written):
            if rule is None:
                forget_values(given)  # first: Note [Known values]
                return kernel(*args, **keywords)
            return assume(args, keywords, given)
        known = _read_all(args, keywords, copies, only_written)
        try:
            result = kernel(*args, **keywords)
        except values.DataDependent as error:
            try:
                found = _repeated(known[0][0]) if name == "repeat_interleave" else call(*known)
            except NotImplementedError:  # the CPU has no kernel for these types
                found = _FAILED
            if found is _FAILED or any(each.layout is not torch.strided or each.is_nested for each in _tensors(found)):
                raise
            unread_values.withdraw(error.line)
            originals = {id(copies[id(each)]): each for each in _tensors(given)}
            result = _adopt(found, _device_of((args, keywords)), originals)
        else:
            is_small = all(each.numel() * each.itemsize <= _KNOWN_BYTES for each in _tensors([given, result]))
            found = _compute(call, *known) if is_small else _FAILED
        for tensor in _tensors(given):
            if tensor.is_cuda:
                keep_known(tensor, None if found is _FAILED else copies.get(id(tensor)))
        _keep_results(result, found, {id(each) for each in _tensors(given)})
        if found is _FAILED and rule is not None:
            _note_assumed(rule(_by_name(args, keywords, names)), result)
        return result

    def assume(args: tuple[Any, ...], keywords: Mapping[str, Any], given: list[Any]) -> Any:
        elements = rule(_by_name(args, keywords, names))  # type: ignore[misc]  # there is a rule
        before = [(each, assumed(each)) for each in _tensors(given) if each.is_cuda]
        forget_values(given)
        result = kernel(*args, **keywords)
        for tensor, held in before:
            if tensor is not result:
                note_elements(tensor, NOTHING, held)
        _note_assumed(elements, result, {id(tensor): held for tensor, held in before})
        return result

    return run


def _repeated(repeats: torch.Tensor) -> torch.Tensor:
    """Return what `repeat_interleave` returns, without values if there are many, which the host has no memory for."""
    total = int(repeats.sum())
    if total > _MOST_REPEATS:
        return torch.empty(total, dtype=repeats.dtype, device="meta")
    return torch.repeat_interleave(repeats)


def _by_name(args: tuple[Any, ...], keywords: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **keywords}


def _note_assumed(
    elements: Elements | Sequence[Elements], result: Any, before: Mapping[int, Elements] | None = None
) -> None:
    """Note what is assumed about results of the device."""
    results = result if isinstance(result, (list, tuple)) else [result]
    for tensor, found in zip(results, [elements] if isinstance(elements, Elements) else elements, strict=False):
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor.layout is torch.strided:
            note_elements(tensor, found, (before or {}).get(id(tensor)))


def _forgetting(kernel: _Kernel, written: Mapping[int, str], find: Callable[[torch.Tensor], EmulatedMemory]) -> _Kernel:
    def run(*args: Any, **keywords: Any) -> Any:
        if not values.is_computed():
            forget_values(_given(args, keywords, written), find)
        return kernel(*args, **keywords)

    return run


def _given(args: tuple[Any, ...], keywords: Mapping[str, Any], names: Mapping[int, str]) -> list[Any]:
    """Return the arguments with given positions and names."""
    return [args[at] if at < len(args) else keywords.get(name) for at, name in names.items()]


def _compute(call: Callable[[list[Any], dict[str, Any]], Any], args: list[Any], keywords: dict[str, Any]) -> Any:
    """Return what the CPU computes, or _FAILED if it cannot."""
    try:
        with torch.no_grad():
            return call(args, keywords)
    except Exception:  # noqa: BLE001 -- of the CPU's kernel, such as for a type that it lacks
        return _FAILED


def _read_all(
    args: tuple[Any, ...], keywords: Mapping[str, Any], copies: dict[int, torch.Tensor], only_written: set[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments with copies of known values in place of tensors, which are kept by the id of the tensor."""
    positional = [_read(each, copies) for each in args]  # first: an argument may be the result, too
    return positional, {name: _read(each, copies, empty=name in only_written) for name, each in keywords.items()}


def _are_known(args: tuple[Any, ...], keywords: Mapping[str, Any], only_written: set[str]) -> bool:
    """Return True if the values of all arguments are known, apart from those that are only written."""
    return _is_known(args) and all(_is_known(each, empty=name in only_written) for name, each in keywords.items())


def _is_known(argument: Any, *, empty: bool = False) -> bool:
    if isinstance(argument, torch.Tensor):
        if argument.layout is not torch.strided or argument.numel() * argument.itemsize > _KNOWN_BYTES:
            return False
        if argument.is_cuda:
            return empty or memory_of(argument).known is not None
        if argument.device.type == "cpu":
            check_host(argument)
        return bool(argument.device.type == "cpu")
    if isinstance(argument, (list, tuple)):
        return all(_is_known(each, empty=empty) for each in argument)
    return not isinstance(argument, torch.Generator)


def _read(argument: Any, copies: dict[int, torch.Tensor], *, empty: bool = False) -> Any:
    if isinstance(argument, torch.Tensor):
        if id(argument) not in copies:
            copies[id(argument)] = _copy_known(argument, empty=empty)
        return copies[id(argument)]
    if isinstance(argument, (list, tuple)):
        return [_read(each, copies, empty=empty) for each in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _copy_known(tensor: torch.Tensor, *, empty: bool) -> torch.Tensor:
    found = known_values(tensor) if tensor.is_cuda else tensor
    return torch.empty_like(tensor, device="cpu") if empty or found is None else found.detach().clone()


def _tensors(argument: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument, also those in lists and dicts."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, dict):
        argument = list(argument.values())
    if isinstance(argument, (list, tuple)):
        return [tensor for each in argument for tensor in _tensors(each)]
    return []


def _device_of(arguments: Any) -> torch.device:
    return next(each.device for each in _tensors(list(arguments)) if each.is_cuda)


def _adopt(found: Any, device: torch.device, originals: dict[int, torch.Tensor]) -> Any:
    """Return tensors of the device for results whose size depends on values, or the originals of those written."""
    if isinstance(found, torch.Tensor):
        original = originals.get(id(found))
        if original is not None and original.shape == found.shape:
            return original
        shape = torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="meta")
        if original is None:
            return adopt(shape, open_torch_device(device))
        replace_values(original, shape)
        return original
    if isinstance(found, (list, tuple)):
        return type(found)(_adopt(each, device, originals) for each in found)
    return found


def _keep_results(result: Any, found: Any, noted: set[int]) -> None:
    if isinstance(result, torch.Tensor):
        if isinstance(found, torch.Tensor) and result.is_cuda and id(result) not in noted:
            keep_known(result, found if found.shape == result.shape else None)
    elif isinstance(result, (list, tuple)) and isinstance(found, (list, tuple)) and len(result) == len(found):
        for one, other in zip(result, found, strict=True):
            _keep_results(one, other, noted)
