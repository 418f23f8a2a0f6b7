"""Nodes of captured graphs: validation of their arguments, their `details` mappings, and their order of execution.

Each function named after a queue method returns the `details` of a `CapturedNode`. Invalid arguments raise
ValueError or TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.backends.common.draw_encoding import pack_draw
from forebay.backends.common.strided_copy_encoding import pack_strided_copy
from forebay.spi import CapturedNode, Draw, Queue, StridedCopy

__all__ = ["call", "copy", "copy_strided", "draw", "executed_nodes", "fill", "launch_parts", "native", "reseeded_draw"]

_UINT64_MAX = (1 << 64) - 1


def copy(dst: int, src: int, nbytes: int) -> dict[str, Any]:
    """Return the details of a copy: "to", "source" and "nbytes".

    Parameters
    ----------
    dst : int
        Destination address.
    src : int
        Source address.
    nbytes : int
        Number of bytes.
    """
    return {"to": address_of(dst, "dst"), "source": address_of(src, "src"), "nbytes": size_of(nbytes)}


def fill(dst: int, byte: int, nbytes: int) -> dict[str, Any]:
    """Return the details of a fill: "to", "byte" and "nbytes".

    Parameters
    ----------
    dst : int
        Destination address.
    byte : int
        Value from 0 to 255.
    nbytes : int
        Number of bytes.
    """
    return {"to": address_of(dst, "dst"), "byte": byte_of(byte), "nbytes": size_of(nbytes)}


def copy_strided(copy: StridedCopy) -> dict[str, Any]:
    """Return the details of a strided copy or a fill.

    Parameters
    ----------
    copy : StridedCopy
        The copy.

    Returns
    -------
    dict
        The details: "to", "elements", "element", "source_element", "copy", and "packed", the copy as bytes for
        forebay's own queues.
    """
    return {
        "to": address_of(copy.to, "to"), "elements": math.prod(copy.shape), "element": copy.element,
        "source_element": copy.source_element, "copy": copy, "packed": pack_strided_copy(copy),
    }  # fmt: skip


def call(function: Callable[[], object]) -> dict[str, Any]:
    """Return the details of a Python function call: "function".

    Parameters
    ----------
    function : callable
        Function without arguments.
    """
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    return {"function": function}


def native(function: int, argument: int) -> dict[str, Any]:
    """Return the details of a native function call: "function" and "argument".

    Parameters
    ----------
    function : int
        Address of an `int f(void *)`.
    argument : int
        Its argument.
    """
    return {"function": address_of(function, "function"), "argument": index_of(argument, "argument")}


def draw(draw: Draw) -> dict[str, Any]:
    """Return the details of a random fill: "law", "to", "elements", "element", "source", "offset" and "draw".

    Parameters
    ----------
    draw : Draw
        The fill.

    Returns
    -------
    dict
        The details; "packed" is the draw without seed and offset, as bytes for forebay's own queues. In a capture
        "source" is the number of the source of random numbers and "offset" is relative to it (see `spi.Captures`);
        otherwise they are the draw's seed and offset.
    """
    return {
        "law": draw.distribution, "to": draw.address, "elements": draw.elements, "element": draw.element,
        "source": draw.seed, "offset": draw.offset, "draw": draw, "packed": pack_draw(draw._replace(seed=0, offset=0)),
    }  # fmt: skip


def reseeded_draw(details: Mapping[str, Any], sources: Sequence[tuple[int, int]]) -> Draw:
    """Return the draw of a captured node with the seed and offset of one launch.

    Parameters
    ----------
    details : mapping
        Details of the node.
    sources : sequence of tuple of int
        Seed and offset of each source of random numbers.
    """
    seed, start = sources[details["source"]]
    found: Draw = details["draw"]._replace(seed=seed, offset=(start + details["offset"]) & _UINT64_MAX)
    return found


def launch_parts(work: Sequence[CapturedNode]) -> Iterator[range | Callable[[Queue], object]]:
    """Yield the parts of a launch in order: ranges of nodes to execute, and functions of event nodes to call.

    Parameters
    ----------
    work : sequence of CapturedNode
        Nodes of a captured graph.

    Yields
    ------
    range or callable
        Numbers of nodes for `executed_nodes`, or a function to call with the queue.

    Examples
    --------
    >>> work = [CapturedNode("fill", (), {}), CapturedNode("record_event", (0,), {"function": print})]
    >>> list(launch_parts(work))
    [range(0, 1), <built-in function print>]
    """
    start = 0
    for number, node in enumerate(work):
        if node.op in {"record_event", "wait_event"}:
            if start < number:
                yield range(start, number)
            yield node.details["function"]
            start = number + 1
    if start < len(work):
        yield range(start, len(work))


def executed_nodes(
    work: Sequence[CapturedNode], byte_at: Callable[[int], int], part: range | None = None
) -> Iterator[CapturedNode]:
    """Yield the nodes to execute, in the order of their capture, with conditions and loops evaluated.

    Parameters
    ----------
    work : sequence of CapturedNode
        Nodes of a captured graph.
    byte_at : callable
        Function that returns the byte at an address of device memory.
    part : range, optional
        Numbers of the nodes to execute, from `launch_parts`; all by default.

    Yields
    ------
    CapturedNode
        The next node; it must be executed before the following one is requested.

    Examples
    --------
    >>> again = [CapturedNode("while", (), {"address": 8}, range(1, 4)), CapturedNode("fill", (0,), {}),
    ...          CapturedNode("set", (1,), {"address": 8, "of": 0}), CapturedNode("again", (2,), {"of": 0})]
    >>> memory = [1, 1, 0]
    >>> [node.op for node in executed_nodes(again, lambda address: memory.pop(0))]
    ['fill', 'fill']
    """
    part = range(len(work)) if part is None else part
    at, conditions = part.start, dict[int, int]()  # number of each condition: the byte last read for it
    while at < part.stop:
        what, _, details, body = work[at]
        match what:
            case "if" | "while":
                conditions[at] = byte_at(details["address"])
                at = at + 1 if conditions[at] else body.stop
            case "set":
                conditions[details["of"]] = byte_at(details["address"])
                at += 1
            case "again":
                at = details["of"] + 1 if conditions[details["of"]] else at + 1
            case _:
                yield work[at]
                at += 1
