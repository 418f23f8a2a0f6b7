"""Values that are known although none are computed: constants of a few elements, and what is computed from them.

# Note [Known values]
A program without values can read masks, lengths and labels that come from the host, but not results of its model. The
known values of a memory are a storage on the CPU, of the memory and not of a tensor, as views share it. An operator
whose tensors are all known is computed on the CPU as well, at once if they are small (32 KiB), else when a value is
read: Note [Values computed when they are read]. Any other makes what it writes unknown, before it runs, so that an
error leaves nothing that is wrong. What a graph captures is unknown, as its replays change it. Random numbers are
never known. A value that is taken for known although it is not would lead the program another way than on a GPU,
without an error; one that is forgotten only raises DataDependent. Rejected: tracking elements, as masks are written by
views and indices of any form.
Test: tests/interop/torch/kernels/test_known_values.py::test_unknown_values_are_not_taken_for_known_ones
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import NOTHING, Elements, assumed, note_elements
from forebay.interop.torch.assumptions.rules import moves_elements, rule_of
from forebay.interop.torch.assumptions.single_elements import Rule
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices._storage_owners import EmulatedMemory
from forebay.interop.torch.devices.arguments import forget_values, tensors_of
from forebay.interop.torch.devices.emulated_memory import accessed_memory, adopt, memory_of, open_torch_device
from forebay.interop.torch.kernels.generic import caller_of, replace_values
from forebay.interop.torch.kernels.knowledge import BY_INDEX, LATER, NOW, is_overwritten, is_whole_number, knowledge_of
from forebay.interop.torch.kernels.known_memory import SMALL, Captured, Known, captured, held_now, layout_of
from forebay.interop.torch.kernels.recorded_calls import RecordedCall
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.processes import unread_values

__all__ = [
    "adopt_layouts",
    "keep_captured",
    "keep_copied",
    "keep_known",
    "known_values",
    "with_known_values",
]

# Operators whose results of floating-point numbers are recorded, beside those of single elements.
_CHEAP = {
    "_softmax", "_to_copy", "amax", "amin", "arange", "constant_pad_nd", "cumsum", "eye", "linspace", "masked_fill",
    "scatter", "sum", "tril", "triu", "where",
}  # fmt: skip
_FAILED = object()
_NEVER_KNOWN = (torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view)  # random or resized
_MOST_REPEATS = 1 << 16  # elements of a result whose size depends on values
_Kernel = Callable[..., Any]


def known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor of the device, which share its known memory, or None if they are unknown.

    All elements of a tensor of any size that was filled with one number are known, too.
    """
    memory = accessed_memory(tensor)
    if memory.known is not None:
        storage = memory.known.read()
        if storage is not None:
            return layout_of(tensor).over(storage)
        memory.known = None  # what is assumed about the elements stays
    found = assumed(tensor)
    if not found.is_exact:
        return None
    return torch.tensor(found.value, dtype=tensor.dtype).expand(tensor.shape)


def keep_known(tensor: torch.Tensor, source: torch.Tensor | None) -> None:
    """Note the values that were written to a tensor of the device: a tensor on the CPU, or None if they are unknown.

    If the tensor is a part of an unknown memory, the memory stays unknown.
    """
    memory = accessed_memory(tensor)
    before = assumed(tensor)
    if source is None:
        memory.known = memory.assumed = None
    elif memory.nbytes <= SMALL:
        _write_small(tensor, memory, source, before)
    else:
        found = assumed(source).as_type(tensor.dtype)
        known = memory.known
        if known is not None and known.storage is not None and tensor.numel() * tensor.itemsize < memory.nbytes:
            memory.assumed, memory.known = None, known.writable()
            if memory.known is not None:
                layout_of(tensor).over(memory.known.storage).copy_(source)
            return
        keep_captured(tensor, None if found.is_exact else captured(source, None), found, before)


def keep_copied(target: torch.Tensor, source: torch.Tensor) -> None:
    """Note that a tensor of a device has received the values of another one."""
    memory, found, before = accessed_memory(source), assumed(source), assumed(target)
    sizes = memory.nbytes, accessed_memory(target).nbytes
    if memory.known is not None and memory.known.storage is not None and max(sizes) <= SMALL:
        keep_known(target, known_values(source))
        return
    taken = captured(source, found.value if found.is_exact else None)
    elements = found.as_type(target.dtype)
    if target.stride() != source.stride():
        elements = elements.without_places()
    if taken is None:
        keep_known(target, None)
        note_elements(target, elements, before)
    else:
        keep_captured(target, None if elements.is_exact else taken, elements, before)


def _write_small(tensor: torch.Tensor, memory: EmulatedMemory, source: torch.Tensor, before: Elements) -> None:
    if memory.known is not None and memory.known.read() is None:
        memory.known = None
    if memory.known is None:
        if not tensor.numel() or tensor.numel() * tensor.itemsize != memory.nbytes:
            note_elements(tensor, assumed(source).as_type(tensor.dtype), before)
            return
        memory.known = Known(memory.nbytes, torch.UntypedStorage(memory.nbytes))
    memory.known = written = memory.known.writable()
    if written is not None:
        layout_of(tensor).over(written.storage).copy_(source)


def keep_captured(tensor: torch.Tensor, source: Captured | None, found: Elements, before: Elements) -> None:
    """Note the values that were written to a tensor of a large memory, which are computed when they are read.

    Parameters
    ----------
    tensor : torch.Tensor
        The tensor of the device.
    source : Captured or None
        The values; None if they are unknown, or follow from `found`.
    found : Elements
        What holds for the elements that were written.
    before : Elements
        What held for the memory before.
    """
    memory = accessed_memory(tensor)
    is_whole = bool(tensor.numel()) and tensor.numel() * tensor.itemsize == memory.nbytes
    held = (
        None if is_whole else held_now(tensor, memory.known, memory.nbytes, before.value if before.is_exact else None)
    )
    if source is None and found.is_exact and not is_whole and held is not None:
        value, dtype = found.value, tensor.dtype
        source = Captured(lambda: torch.tensor(value, dtype=dtype))
    if source is None or (not is_whole and held is None):
        memory.known = memory.assumed = None
        note_elements(tensor, found, before)
        return
    layout, nbytes, write = layout_of(tensor), memory.nbytes, source

    def make() -> torch.UntypedStorage:
        storage = torch.UntypedStorage(nbytes) if held is None else held().untyped_storage().clone()
        layout.over(storage).copy_(write())
        return storage

    records = 1 + write.records + (0 if held is None else held.records)
    memory.known = memory.assumed = None
    note_elements(tensor, found, before)
    memory.known = known = Known(nbytes, None, make, records)
    if known.is_chain_long() and known.read() is None:
        memory.known = None


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
    records = _recorder_of(operator, name)
    if any(tag in operator.tags for tag in _NEVER_KNOWN) or name.startswith(("empty", "new_empty")):
        is_written = torch.Tag.inplace_view not in operator.tags
        kernel = _forgetting(kernel, written, accessed_memory if is_written else memory_of)
        # Of random integers their range is known; a random number for each element of a tensor has no rule.
        return kernel if rule is None or torch.Tag.pointwise in operator.tags else _assuming(kernel, rule, names)

    def run(*args: Any, **keywords: Any) -> Any:
        if values.is_computed():
            return kernel(*args, **keywords)
        given = _given(args, keywords, written)
        if name in BY_INDEX and is_overwritten(name, args, keywords, known_values):
            keep_known(args[0], torch.zeros(args[0].shape, dtype=args[0].dtype))  # whatever it was, as of an empty one
        kind = knowledge_of(args, keywords, only_written)
        if kind == LATER and records is not None:
            try:
                return record(args, keywords, given)
            except values.DataDependent as error:  # the size of the result depends on the values
                if not _can_read(args, keywords):
                    raise
                unread_values.withdraw(error.line)
                kind = NOW
        if kind != NOW:
            if rule is None:
                forget_values(given)  # first: Note [Known values]
                return kernel(*args, **keywords)
            return assume(args, keywords, given)
        copies: dict[int, torch.Tensor] = {}
        known = _read_all(args, keywords, copies, only_written)
        try:
            result = kernel(*args, **keywords)
        except values.DataDependent as error:
            try:
                found = _repeated(known[0][0]) if name == "repeat_interleave" else call(*known)
            except NotImplementedError:  # the CPU has no kernel for these types
                found = _FAILED
            if found is _FAILED or any(
                each.layout is not torch.strided or each.is_nested for each in tensors_of(found)
            ):
                raise
            unread_values.withdraw(error.line)
            originals = {id(copies[id(each)]): each for each in tensors_of(given)}
            result = adopt_layouts(found, _device_of((args, keywords)), originals)
        else:
            is_small = all(each.numel() * each.itemsize <= SMALL for each in tensors_of([given, result]))
            if not is_small:
                elements = NOTHING if rule is None else rule(_by_name(args, keywords, names))
                before = {id(each): assumed(each) for each in tensors_of(given) if each.is_cuda}
                keep_call(RecordedCall(call, args, keywords, only_written), result, given, elements, before)
                return result
            found = _compute(call, *known)
        for tensor in tensors_of(given):
            if tensor.is_cuda:
                keep_known(tensor, None if found is _FAILED else copies.get(id(tensor)))
        _keep_results(result, found, {id(each) for each in tensors_of(given)})
        if found is _FAILED and rule is not None:
            _note_assumed(rule(_by_name(args, keywords, names)), result)
        return result

    def record(args: tuple[Any, ...], keywords: Mapping[str, Any], given: list[Any]) -> Any:
        """Run the kernel, and record what computes the values."""
        elements = NOTHING if rule is None else rule(_by_name(args, keywords, names))
        exact = isinstance(elements, Elements) and elements.is_exact
        made = None if exact and not written else RecordedCall(call, args, keywords, only_written)
        before = {id(each): assumed(each) for each in tensors_of(given) if each.is_cuda}
        result = kernel(*args, **keywords)
        keep_call(made, result, given, elements, before)
        return result

    def keep_call(
        made: RecordedCall | None, result: Any, given: list[Any], elements: Elements | Sequence[Elements],
        before: Mapping[int, Elements],
    ) -> None:  # fmt: skip
        """Note the results of a recorded call, and what it has written."""
        if made is not None and not made.is_complete:
            made = None
        found = iter([elements] if isinstance(elements, Elements) else elements)
        noted = set()
        for at, tensor in enumerate(tensors_of(result)):
            of_tensor = next(found, NOTHING)
            if tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_nested:
                noted.add(id(tensor))
                source = made.result(at) if made is not None and records(tensor) else None
                if of_tensor.is_exact and tensor.numel() * tensor.itemsize == accessed_memory(tensor).nbytes:
                    source = None
                keep_captured(tensor, source, of_tensor, before.get(id(tensor), NOTHING))
        for tensor in tensors_of(given):
            if tensor.is_cuda and id(tensor) not in noted:
                source = made.written(tensor) if made is not None and records(tensor) else None
                keep_captured(tensor, source, NOTHING, before[id(tensor)])

    def assume(args: tuple[Any, ...], keywords: Mapping[str, Any], given: list[Any]) -> Any:
        elements = rule(_by_name(args, keywords, names))  # type: ignore[misc]  # there is a rule
        before = [(each, assumed(each)) for each in tensors_of(given) if each.is_cuda]
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
            # A new tensor may be a part of its memory, as that of `unique`, of which nothing else is read.
            note_elements(tensor, found, (before or {}).get(id(tensor), found))


def _forgetting(kernel: _Kernel, written: Mapping[int, str], find: Callable[[torch.Tensor], EmulatedMemory]) -> _Kernel:
    def run(*args: Any, **keywords: Any) -> Any:
        if not values.is_computed():
            forget_values(_given(args, keywords, written), find)
        return kernel(*args, **keywords)

    return run


def _assuming(kernel: _Kernel, rule: Rule, names: list[str]) -> _Kernel:
    def run(*args: Any, **keywords: Any) -> Any:
        result = kernel(*args, **keywords)
        if not values.is_computed():
            _note_assumed(rule(_by_name(args, keywords, names)), result)
        return result

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


def _recorder_of(operator: Any, name: str) -> Callable[[torch.Tensor], bool]:
    """Return whether what an operator writes to a tensor is recorded: numbers of its kind are cheap to compute."""
    is_cheap = torch.Tag.pointwise in operator.tags or name.removesuffix("_") in _CHEAP or moves_elements(operator)
    return lambda tensor: is_cheap or is_whole_number(tensor)


def _can_read(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    return all(known_values(each) is not None for each in tensors_of([args, [*keywords.values()]]) if each.is_cuda)


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


def _device_of(arguments: Any) -> torch.device:
    return next(each.device for each in tensors_of(list(arguments)) if each.is_cuda)


def adopt_layouts(found: Any, device: torch.device, originals: dict[int, torch.Tensor]) -> Any:
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
        return type(found)(adopt_layouts(each, device, originals) for each in found)
    return found


def _keep_results(result: Any, found: Any, noted: set[int]) -> None:
    if isinstance(result, torch.Tensor):
        if isinstance(found, torch.Tensor) and result.is_cuda and id(result) not in noted:
            keep_known(result, found if found.shape == result.shape else None)
    elif isinstance(result, (list, tuple)) and isinstance(found, (list, tuple)) and len(result) == len(found):
        for one, other in zip(result, found, strict=True):
            _keep_results(one, other, noted)
