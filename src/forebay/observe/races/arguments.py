"""Which memory a call reads and writes, by the schema of its operator (`torch.cuda._sanitizer.ArgumentHandler`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from forebay.runtime.tensors.tensor import Tensor

__all__ = ["TK", "ArgumentHandler", "TVa", "TVb", "zip_arguments", "zip_by_key"]

TK = TypeVar("TK")
TVa = TypeVar("TVa")
TVb = TypeVar("TVb")


def zip_by_key(a: Mapping[TK, TVa], b: Mapping[TK, TVb]) -> Iterator[tuple[TK, TVa, TVb]]:
    """Yield the keys that two mappings share, with the values in `a` and in `b`.

    As `torch.cuda._sanitizer.zip_by_key`.

    Parameters
    ----------
    a : mapping
        The mapping that determines the order.
    b : mapping
        The other mapping.

    Examples
    --------
    >>> list(zip_by_key({1: "a", 2: "b"}, {2: "c"}))
    [(2, 'b', 'c')]
    """
    for key, value in a.items():
        if key in b:
            yield key, value, b[key]


def zip_arguments(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the description and the value of each argument of a call.

    As `torch.cuda._sanitizer.zip_arguments`.

    Parameters
    ----------
    schema : object
        The operator's: `arguments` is a list of objects with a `name`.
    args : tuple
        The positional arguments.
    kwargs : dict
        The keyword arguments; those that the schema does not have are ignored.
    """
    positional, others = schema.arguments[: len(args)], schema.arguments[len(args) :]
    yield from zip(positional, args, strict=False)
    for _, argument, value in zip_by_key({each.name: each for each in others}, kwargs):
        yield argument, value


class ArgumentHandler:
    """The addresses that one call reads and writes on CUDA devices.

    As `torch.cuda._sanitizer.ArgumentHandler`. An empty tensor has its `id` instead of an address.
    """

    def __init__(self) -> None:
        self.dataptrs_read: set[int] = set()
        self.dataptrs_written: set[int] = set()
        self.tensor_aliases: dict[int, list[str]] = {}
        self.outputs: set[int] = set()

    def parse_inputs(self, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_factory: bool) -> None:
        """Add the arguments of a call.

        Parameters
        ----------
        schema : object
            The operator's: `arguments` is a list of objects with `name` and `alias_info`.
        args : tuple
            The positional arguments: tensors, and lists, tuples and dicts of them.
        kwargs : dict
            The keyword arguments.
        is_factory : bool
            True if the operator only reads shapes and types.
        """
        for argument, value in zip_arguments(schema, args, kwargs):
            is_write = argument.alias_info is not None and argument.alias_info.is_write
            is_view = argument.alias_info is not None and not is_write
            for tensor in _cuda_tensors(value):
                self._add(tensor, argument.name, is_write=is_write, metadata_only=is_factory or is_view)

    def parse_outputs(self, schema: Any, outputs: Any, *, is_factory: bool) -> None:
        """Add the result of a call.

        Parameters
        ----------
        schema : object
            The operator's: `returns` is a list of objects with `alias_info`, of which the first is used.
        outputs : Tensor or list or tuple or dict
            The result.
        is_factory : bool
            True if the operator does not write its result.
        """
        for result, value in zip(schema.returns, (outputs,), strict=False):
            is_view = result.alias_info is not None and not result.alias_info.is_write
            unwritten = is_factory or is_view
            for tensor in _cuda_tensors(value):
                self.outputs.add(self._add(tensor, None, is_write=not unwritten, metadata_only=unwritten))

    def _add(self, tensor: Tensor, name: str | None, *, is_write: bool, metadata_only: bool) -> int:
        data_ptr = tensor.data_ptr() or id(tensor)
        if is_write:
            self.dataptrs_written.add(data_ptr)
        elif not metadata_only:
            self.dataptrs_read.add(data_ptr)
        aliases = self.tensor_aliases.setdefault(data_ptr, [])
        if name is not None:
            aliases.append(name)
        return data_ptr


def _cuda_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_cuda:
            yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _cuda_tensors(each)
