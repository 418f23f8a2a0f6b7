"""What queued work is called and what is known of it, for recordings and for whoever looks at them; and its order.

Wrong arguments raise ValueError or TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.spi import Draw, Recorded

__all__ = ["call", "copy", "draw", "fill", "native", "reseeded", "steps"]

_WHOLE = (1 << 64) - 1


def copy(dst: int, src: int, nbytes: int) -> dict[str, Any]:
    return {"to": address_of(dst, "dst"), "source": address_of(src, "src"), "nbytes": size_of(nbytes)}


def fill(dst: int, byte: int, nbytes: int) -> dict[str, Any]:
    return {"to": address_of(dst, "dst"), "byte": byte_of(byte), "nbytes": size_of(nbytes)}


def call(function: Callable[[], object]) -> dict[str, Any]:
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    return {"function": function}


def native(function: int, argument: int) -> dict[str, Any]:
    return {"function": address_of(function, "function"), "argument": index_of(argument, "argument")}


def draw(draw: Draw) -> dict[str, Any]:
    """`source` and `offset` say which numbers, as in `spi.Captures`; outside a recording they are the draw's own."""
    return {
        "law": draw.law, "to": draw.address, "elements": draw.elements, "element": draw.element,
        "source": draw.seed, "offset": draw.offset, "draw": draw,
    }  # fmt: skip


def reseeded(details: Mapping[str, Any], sources: Sequence[tuple[int, int]]) -> Draw:
    """A recorded draw, with the numbers of these sources."""
    seed, start = sources[details["source"]]
    found: Draw = details["draw"]._replace(seed=seed, offset=(start + details["offset"]) & _WHOLE)
    return found


def steps(work: Sequence[Recorded], byte_at: Callable[[int], int]) -> Iterator[Recorded]:
    """The pieces to do, one after another, as the conditions among them ask; `byte_at` reads the device's memory.

    Each is done when the next is asked for. The order is that of the recording, which every dependency allows.

    >>> again = [Recorded("while", (), {"address": 8}, range(1, 4)), Recorded("fill", (0,), {}),
    ...          Recorded("set", (1,), {"address": 8, "of": 0}), Recorded("again", (2,), {"of": 0})]
    >>> memory = [1, 1, 0]
    >>> [piece.what for piece in steps(again, lambda address: memory.pop(0))]
    ['fill', 'fill']
    """
    at, found = 0, dict[int, int]()  # of each condition the byte that it saw
    while at < len(work):
        what, _, details, body = work[at]
        match what:
            case "if" | "while":
                found[at] = byte_at(details["address"])
                at = at + 1 if found[at] else body.stop
            case "set":
                found[details["of"]] = byte_at(details["address"])
                at += 1
            case "again":
                at = details["of"] + 1 if found[details["of"]] else at + 1
            case _:
                yield work[at]
                at += 1
