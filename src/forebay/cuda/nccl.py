"""Collective operations on one tensor of each of this process's CUDA devices (`torch.cuda.nccl`).

Work is queued on the given streams, or on each device's current stream, and begins once all of them have reached it.
The host does not wait. `forebay.runtime.tensors.collectives` implements the operations.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.errors import ForebayError, Unsupported
from forebay.runtime.streams.stream import Stream, current_stream_for
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

_VERSION = (2, 30, 7)  # as in PyTorch 2.15
_ID_BYTES = 128
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
_TORCH_NAMES = {"int16": "Short", "complex64": "ComplexFloat", "complex128": "ComplexDouble"}  # in error texts


@dataclass(frozen=True, eq=False)
class Communicator:
    """One rank's membership in a group of ranks.

    Parameters
    ----------
    uid : bytes
        The group's id, 128 bytes.
    num_ranks : int
        The number of ranks in the group.
    rank : int
        This rank's number, starting at 0.
    """

    uid: bytes
    num_ranks: int
    rank: int


def is_available(tensors: Iterable[Tensor]) -> bool:
    """Return True if the tensors can be used in one operation.

    As `torch.cuda.nccl.is_available`.

    Parameters
    ----------
    tensors : iterable of Tensor
        The tensors.

    Returns
    -------
    bool
        True if all are contiguous and each is on a different CUDA device.
    """
    seen = set()
    for tensor in tensors:
        if tensor.device.kind != CUDA.name or not tensor.is_contiguous() or tensor.device in seen:
            return False
        seen.add(tensor.device)
    return True


def version() -> tuple[int, ...]:
    """Return the major, minor and patch version of NCCL that this module is compatible with.

    As `torch.cuda.nccl.version`. Does not initialise CUDA.

    Examples
    --------
    >>> from forebay.cuda import nccl
    >>> nccl.version()
    (2, 30, 7)
    """
    return _VERSION


def unique_id() -> bytes:
    """Return a new id for a group of ranks: 128 random bytes, for `init_rank`.

    As `torch.cuda.nccl.unique_id`. Does not initialise CUDA.
    """
    return os.urandom(_ID_BYTES)


def init_rank(num_ranks: int, uid: bytes, rank: int) -> Communicator:
    """Return one rank's communicator, for the parameter `comms`.

    As `torch.cuda.nccl.init_rank`, but does not wait for the other ranks.

    Parameters
    ----------
    num_ranks : int
        The number of ranks in the group.
    uid : bytes
        The group's id, from `unique_id`.
    rank : int
        The rank's number, starting at 0.

    Returns
    -------
    Communicator
        The communicator. Each call that uses it must include all ranks of the group.

    Raises
    ------
    TypeError
        If `num_ranks` or `rank` is not an int.
    ValueError
        If `uid` is not an id, or `rank` is out of range.
    """
    if not isinstance(num_ranks, int) or not isinstance(rank, int):
        raise TypeError(f"num_ranks and rank must be ints, not {num_ranks!r} and {rank!r}")
    if not isinstance(uid, bytes) or len(uid) != _ID_BYTES:
        raise ValueError(f"uid must be the {_ID_BYTES} bytes that unique_id() returns")
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank must be in [0, {num_ranks}), got {rank}")
    return Communicator(uid, num_ranks, rank)


def all_reduce(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor] | None = None,
    op: int = SUM,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduce the inputs, and store the result in every output.

    As `torch.cuda.nccl.all_reduce`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        One tensor on each device.
    outputs : sequence of Tensor, optional
        Tensors like the inputs; the inputs themselves by default.
    op : int, default 0
        The reduction: 0 sum, 1 product, 2 maximum, 3 minimum, 4 average.
    streams : sequence of (Stream or None), optional
        One for each input; the current stream of its device by default.
    comms : sequence of Communicator, optional
        One for each input, in the order of their ranks; checked without effect.

    Raises
    ------
    RuntimeError
        If the tensors or streams do not match.
    TypeError
        If an argument has the wrong type.
    Unsupported
        If `comms` does not contain all ranks of one group.

    Examples
    --------
    >>> import forebay
    >>> from forebay.cuda import nccl
    >>> with forebay.emulate("cuda", count=2):
    ...     tensors = [forebay.full((2,), 1.0, device=f"cuda:{index}") for index in range(2)]
    ...     nccl.all_reduce(tensors)
    ...     tensors[1].tolist()
    [2.0, 2.0]
    """
    ins = _checked_tensors(inputs)
    outs = ins if outputs is None else _checked_tensors(outputs)
    choose_streams, parse_op = _stream_chooser(streams, ins), _op_parser(op)
    _check_comms(comms, ins)
    _check_all(ins, outs)
    collectives.all_reduce(ins, outs, parse_op(), choose_streams())


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
    """Reduce the inputs, and store the result in one output.

    As `torch.cuda.nccl.reduce`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        One tensor on each device.
    output : Tensor or sequence of Tensor, optional
        A tensor like the root's input; that input itself by default. A sequence is deprecated.
    root : int, default 0
        The position of the input on the output's device.
    op : int, default 0
        The reduction: 0 sum, 1 product, 2 maximum, 3 minimum, 4 average.
    streams : sequence of (Stream or None), optional
        One for each input; the current stream of its device by default.
    comms : sequence of Communicator, optional
        One for each input, in the order of their ranks; checked without effect.
    outputs : sequence of Tensor, optional
        Deprecated: its element `root` is the output.

    Raises
    ------
    RuntimeError
        If the tensors or streams do not match.
    TypeError
        If an argument has the wrong type.
    Unsupported
        If `comms` does not contain all ranks of one group.
    ValueError
        If both `output` and `outputs` are given.

    Warns
    -----
    FutureWarning
        If a sequence of outputs is given.
    """
    ins = _checked_tensors(inputs)
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
        target: Any = outputs[root]
    elif isinstance(output, Sequence) and not isinstance(output, Tensor):
        warnings.warn(
            "nccl.reduce with an output tensor list is deprecated. Please specify a single output tensor.",
            FutureWarning,
            stacklevel=2,
        )
        target = output[root]
    else:
        target = ins[root] if output is None else output
    if not isinstance(target, Tensor):
        raise TypeError(f"expected Tensor (got {type(target).__name__})")
    choose_streams, parse_op = _stream_chooser(streams, ins), _op_parser(op)
    _check_comms(comms, ins)
    _check_root(root, ins)
    _check_all(ins, [None] * root + [target] + [None] * (len(ins) - root - 1))
    collectives.reduce(ins, target, root, parse_op(), choose_streams())


def broadcast(
    inputs: Sequence[Tensor],
    root: int = 0,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Copy one tensor to all others.

    As `torch.cuda.nccl.broadcast`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        One tensor on each device.
    root : int, default 0
        The position of the tensor to copy.
    streams : sequence of (Stream or None), optional
        One for each input; the current stream of its device by default.
    comms : sequence of Communicator, optional
        One for each input, in the order of their ranks; checked without effect.

    Raises
    ------
    RuntimeError
        If the tensors or streams do not match.
    TypeError
        If an argument has the wrong type.
    Unsupported
        If `comms` does not contain all ranks of one group.
    """
    tensors = _checked_tensors(inputs)
    choose_streams = _stream_chooser(streams, tensors)
    _check_comms(comms, tensors)
    _check_root(root, tensors)
    _check_all(tensors, tensors)
    collectives.broadcast(tensors, root, choose_streams())


def all_gather(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Concatenate the inputs, and store the result in every output.

    As `torch.cuda.nccl.all_gather`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        One tensor on each device.
    outputs : sequence of Tensor
        One tensor on each device, with the elements of all inputs together.
    streams : sequence of (Stream or None), optional
        One for each input; the current stream of its device by default.
    comms : sequence of Communicator, optional
        One for each input, in the order of their ranks; checked without effect.

    Raises
    ------
    RuntimeError
        If the tensors or streams do not match.
    TypeError
        If an argument has the wrong type.
    Unsupported
        If `comms` does not contain all ranks of one group.
    """
    ins, outs = _checked_tensors(inputs), _checked_tensors(outputs)
    choose_streams = _stream_chooser(streams, ins)
    _check_comms(comms, ins)
    _check_all(ins, outs, larger=len(ins))
    collectives.all_gather(ins, outs, choose_streams())


def reduce_scatter(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    op: int = SUM,
    streams: Sequence[Stream | None] | None = None,
    comms: Sequence[Communicator] | None = None,
) -> None:
    """Reduce the inputs, and store one part of the result in each output.

    As `torch.cuda.nccl.reduce_scatter`. Does not wait.

    Parameters
    ----------
    inputs : sequence of Tensor
        One tensor on each device.
    outputs : sequence of Tensor
        One tensor on each device, an equal part of an input.
    op : int, default 0
        The reduction: 0 sum, 1 product, 2 maximum, 3 minimum, 4 average.
    streams : sequence of (Stream or None), optional
        One for each input; the current stream of its device by default.
    comms : sequence of Communicator, optional
        One for each input, in the order of their ranks; checked without effect.

    Raises
    ------
    RuntimeError
        If the tensors or streams do not match.
    TypeError
        If an argument has the wrong type.
    Unsupported
        If `comms` does not contain all ranks of one group.
    """
    ins, outs = _checked_tensors(inputs), _checked_tensors(outputs)
    choose_streams, parse_op = _stream_chooser(streams, ins), _op_parser(op)
    _check_comms(comms, ins)
    _check_all(ins, outs, smaller=len(ins))
    collectives.reduce_scatter(ins, outs, parse_op(), choose_streams())


def _checked_tensors(given: Any) -> list[Tensor]:
    if not isinstance(given, Container) or isinstance(given, Tensor):
        raise TypeError("Inputs should be a collection of tensors")
    tensors: list[Tensor] = list(given)  # type: ignore[call-overload]  # containers of tensors are iterable
    for index, each in enumerate(tensors):
        if not isinstance(each, Tensor):
            raise TypeError(f"expected Tensor at {index} (got {type(each).__name__})")
    return tensors


def _stream_chooser(given: Any, tensors: list[Tensor]) -> Any:
    """Check the streams and return a function that returns one for each tensor.

    It is called after all other checks, because looking up current streams opens devices.
    """
    if given is not None:
        if not isinstance(given, Sequence):
            raise ForebayError("Expected a sequence of streams")
        for stream in given:
            if stream is not None and not isinstance(stream, Stream):
                raise ForebayError("Unknown data type found in stream list. Need torch.cuda.Stream or None")
        if len(given) != len(tensors):
            raise ForebayError("number of streams is not equal to number of inputs")

    def choose_streams() -> list[Stream]:
        streams = []
        for index, tensor in enumerate(tensors):
            stream = (given and given[index]) or current_stream_for(tensor.raw_storage.opened)
            if stream.opened.device != tensor.device:
                raise ForebayError(
                    f"the stream at index {index} is on {stream.opened.device}, but its tensor is on {tensor.device}"
                )
            streams.append(stream)
        return streams

    return choose_streams


def _op_parser(given: Any) -> Any:
    """Check the type and return a function that returns the Op, called after all other checks as in PyTorch."""
    if not isinstance(given, int):
        raise TypeError(f"op must be an int, not {type(given).__name__}")

    def parse_op() -> Op:
        try:
            return Op(given)
        except ValueError:
            raise ForebayError("NCCL Error 4: invalid argument (run with NCCL_DEBUG=WARN for details)") from None

    return parse_op


def _check_comms(comms: Any, tensors: list[Tensor]) -> None:
    if comms is None:
        return
    if not isinstance(comms, Sequence):
        raise TypeError("comm is not a sequence")
    for comm in comms:
        if not isinstance(comm, Communicator):
            raise ValueError(f"comms must contain results of init_rank(), not {comm!r}")  # noqa: TRY004 -- as PyTorch
    if len(comms) != len(tensors):
        raise ForebayError("number of communicators is not equal to number of inputs")
    group = {(comm.uid, comm.num_ranks) for comm in comms}
    if len(group) > 1 or [comm.rank for comm in comms] != list(range(comms[0].num_ranks)):
        raise Unsupported("every rank of a group must be in the call, in ascending order")


def _check_root(root: int, tensors: list[Tensor]) -> None:
    if not 0 <= root < len(tensors):
        raise ForebayError("invalid root")


def _check_all(inputs: list[Tensor], outputs: Sequence[Tensor | None], larger: int = 1, smaller: int = 1) -> None:
    """Check the tensors as PyTorch does, in its order. An output of None is skipped."""
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
    name = first.numpy_dtype.name
    if name not in _DTYPES and not name.startswith("float8"):
        raise ForebayError(f"Unconvertible NCCL type {_TORCH_NAMES.get(name, name.replace('ui', 'UI'))}")


def _check_one(tensor: Tensor, first: Tensor) -> None:
    if tensor.device.kind != CUDA.name:
        raise ForebayError("input and output elements have to be cuda dense Tensors")
    if tensor.numpy_dtype != first.numpy_dtype:
        raise ForebayError("all inputs and outputs must be of the same Tensor dtype")
    if not tensor.is_contiguous():
        raise ForebayError("all inputs and outputs have to be contiguous")
