"""Collective operations over this process's CUDA devices, one tensor on each. (`torch.cuda.nccl`)

Work is queued on the given streams, or each device's current one, and begins when all of them have come to it; the host
never waits. What the devices cannot do yet by a library of their own is in `forebay.runtime.tensors.collectives`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError, Unsupported
from forebay.runtime.streams.stream import Stream, stream_of
from forebay.runtime.tensors import collectives
from forebay.runtime.tensors.collectives import Op
from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "SUM",
    "Communicator",
    "all_gather",
    "all_reduce",
    "broadcast",
    "init_rank",
    "is_available",
    "reduce",
    "reduce_scatter",
    "unique_id",
    "version",
]

SUM = 0

_VERSION = (2, 30, 7)  # whose behaviour this is: the one in PyTorch 2.15
_ID_BYTES = 128
_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
_NAMES = {"int16": "Short", "complex64": "ComplexFloat", "complex128": "ComplexDouble"}  # PyTorch's, in a text


@dataclass(frozen=True, eq=False)
class Communicator:
    """One rank's part in a group of ranks."""

    uid: bytes
    num_ranks: int
    rank: int


def is_available(tensors: Iterable[Tensor]) -> bool:
    """Whether the tensors can take part in one operation: contiguous, and each on a CUDA device of its own."""
    seen = set()
    for tensor in tensors:
        if tensor.device.kind != CUDA.name or not tensor.is_contiguous() or tensor.device in seen:
            return False
        seen.add(tensor.device)
    return True


def version() -> tuple[int, ...]:
    """The version of NCCL whose behaviour this is."""
    return _VERSION


def unique_id() -> bytes:
    """128 bytes that name a group of ranks."""
    return os.urandom(_ID_BYTES)


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """A rank's communicator, for `comms`; every rank of the group has to be in each call that uses it.

    Waits for nobody. TypeError and ValueError for nonsense.
    """
    if not isinstance(num_ranks, int) or not isinstance(rank, int):
        raise TypeError(f"num_ranks and rank are ints, not {num_ranks!r} and {rank!r}")
    if not isinstance(uid, bytes) or len(uid) != _ID_BYTES:
        raise ValueError(f"uid is {_ID_BYTES} bytes, which unique_id() gives")
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank {rank} is none of {num_ranks}")
    return Communicator(uid, num_ranks, rank)


def all_reduce(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor] | None = None,
    op: int = SUM,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Each output, or each input itself, becomes the combination of all inputs."""
    ins = _tensors(inputs)
    outs = ins if outputs is None else _tensors(outputs)
    chosen, combine = _streams(streams, ins), _op(op)
    _check_comms(comms, ins)
    _check(ins, outs)
    collectives.all_reduce(ins, outs, combine(), chosen())


def reduce(
    inputs: Sequence[Tensor],
    output: Tensor | Sequence[Tensor] | None = None,
    root: int = 0,
    op: int = SUM,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
    *,
    outputs: Sequence[Tensor] | None = None,
) -> None:
    """The output, or the root's input itself, becomes the combination of all inputs. `outputs` is deprecated."""
    ins = _tensors(inputs)
    if outputs is not None:
        if output is not None:
            raise ValueError(
                "'output' and 'outputs' can not be both specified. 'outputs' is deprecated in favor of 'output', "
                "taking in a single output tensor. The signature of reduce is: reduce(inputs, output=None, root=0, "
                "op=SUM, streams=None, comms=None)."
            )
        warnings.warn(
            "`nccl.reduce` with an output tensor list is deprecated. Please specify a single output tensor with "
            "argument 'output' instead.",
            FutureWarning,
            stacklevel=2,
        )
        found: Any = outputs[root]
    elif isinstance(output, Sequence) and not isinstance(output, Tensor):
        warnings.warn(
            "nccl.reduce with an output tensor list is deprecated. Please specify a single output tensor.",
            FutureWarning,
            stacklevel=2,
        )
        found = output[root]
    else:
        found = ins[root] if output is None else output
    if not isinstance(found, Tensor):
        raise TypeError(f"expected Tensor (got {type(found).__name__})")
    chosen, combine = _streams(streams, ins), _op(op)
    _check_comms(comms, ins)
    _check_root(root, ins)
    _check(ins, [None] * root + [found] + [None] * (len(ins) - root - 1))
    collectives.reduce(ins, found, root, combine(), chosen())


def broadcast(
    inputs: Sequence[Tensor],
    root: int = 0,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Each tensor becomes the root's."""
    tensors = _tensors(inputs)
    chosen = _streams(streams, tensors)
    _check_comms(comms, tensors)
    _check_root(root, tensors)
    _check(tensors, tensors)
    collectives.broadcast(tensors, root, chosen())


def all_gather(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Each output becomes all inputs, one behind the other."""
    ins, outs = _tensors(inputs), _tensors(outputs)
    chosen = _streams(streams, ins)
    _check_comms(comms, ins)
    _check(ins, outs, larger=len(ins))
    collectives.all_gather(ins, outs, chosen())


def reduce_scatter(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int = SUM,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Each output becomes its rank's part of the combination of all inputs."""
    ins, outs = _tensors(inputs), _tensors(outputs)
    chosen, combine = _streams(streams, ins), _op(op)
    _check_comms(comms, ins)
    _check(ins, outs, smaller=len(ins))
    collectives.reduce_scatter(ins, outs, combine(), chosen())


def _tensors(given: Any) -> list[Tensor]:
    if not isinstance(given, Container) or isinstance(given, Tensor):
        raise TypeError("Inputs should be a collection of tensors")
    found: list[Tensor] = list(given)  # type: ignore[call-overload]  # all that hold tensors can be gone through
    for index, each in enumerate(found):
        if not isinstance(each, Tensor):
            raise TypeError(f"expected Tensor at {index} (got {type(each).__name__})")
    return found


def _streams(given: Any, tensors: list[Tensor]) -> Any:
    """How to get one for each tensor: current ones are looked up after all is checked, as that opens devices."""
    if given is not None:
        if not isinstance(given, Sequence):
            raise ForebayError("Expected a sequence of streams")
        for stream in given:
            if stream is not None and not isinstance(stream, Stream):
                raise ForebayError("Unknown data type found in stream list. Need torch.cuda.Stream or None")
        if len(given) != len(tensors):
            raise ForebayError("number of streams is not equal to number of inputs")

    def chosen() -> list[Stream]:
        found = []
        for index, tensor in enumerate(tensors):
            stream = (given and given[index]) or stream_of(tensor.storage.opened)
            if stream.device != tensor.device:
                raise ForebayError(f"the stream at index {index} is of {stream.device}, its tensor of {tensor.device}")
            found.append(stream)
        return found

    return chosen


def _op(given: Any) -> Any:
    if not isinstance(given, int):
        raise TypeError(f"op is an int, not {type(given).__name__}")

    def combine() -> Op:
        try:
            return Op(given)
        except ValueError:
            raise ForebayError("NCCL Error 4: invalid argument (run with NCCL_DEBUG=WARN for details)") from None

    return combine


def _check_comms(comms: Any, tensors: list[Tensor]) -> None:
    if comms is None:
        return
    if not isinstance(comms, Sequence):
        raise TypeError("comm is not a sequence")
    for comm in comms:
        if not isinstance(comm, Communicator):
            raise ValueError(f"a communicator comes from init_rank(), not {comm!r}")  # noqa: TRY004 -- as PyTorch
    if len(comms) != len(tensors):
        raise ForebayError("number of communicators is not equal to number of inputs")
    group = {(comm.uid, comm.num_ranks) for comm in comms}
    if len(group) > 1 or [comm.rank for comm in comms] != list(range(comms[0].num_ranks)):
        raise Unsupported("every rank of a group has to be in the call, in the order of their numbers")


def _check_root(root: int, tensors: list[Tensor]) -> None:
    if not 0 <= root < len(tensors):
        raise ForebayError("invalid root")


def _check(inputs: list[Tensor], outputs: Sequence[Tensor | None], larger: int = 1, smaller: int = 1) -> None:
    """PyTorch's checks, in its order. An output of None is not looked at."""
    if not inputs:
        raise ForebayError("input sequence can't be empty")
    if len(inputs) != len(outputs):
        raise ForebayError(
            "inputs and outputs sequences have to be of the same length, but got input of length "
            f"{len(inputs)} and output of length {len(outputs)}"
        )
    first, seen = inputs[0], set()
    for tensor, output in zip(inputs, outputs, strict=True):
        _check_one(tensor, first)
        if tensor.numel() != first.numel():
            raise ForebayError("all inputs must have the same number of elements")
        if output is not None:
            _check_one(output, first)
            if output.device != tensor.device:
                raise ForebayError("input and output must be on the same device")
            if output.numel() * smaller != first.numel() * larger:
                raise ForebayError("output must be of size input_size * size_multiplier")
        if tensor.device in seen:
            raise ForebayError("inputs must be on unique devices")
        seen.add(tensor.device)
    name = first.dtype.name
    if name not in _TYPES and not name.startswith("float8"):
        raise ForebayError(f"Unconvertible NCCL type {_NAMES.get(name, name.replace('ui', 'UI'))}")


def _check_one(tensor: Tensor, first: Tensor) -> None:
    if tensor.device.kind != CUDA.name:
        raise ForebayError("input and output elements have to be cuda dense Tensors")
    if tensor.dtype != first.dtype:
        raise ForebayError("all inputs and outputs must be of the same Tensor dtype")
    if not tensor.is_contiguous():
        raise ForebayError("all inputs and outputs have to be contiguous")
