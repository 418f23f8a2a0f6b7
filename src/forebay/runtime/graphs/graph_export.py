"""What a graph recorded, for people and profilers: a table of its nodes, and a drawing in Graphviz's language."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from forebay.byte_sizes import format_bytes
from forebay.spi import Recorded

__all__ = ["dot", "table", "top"]

# PyTorch's names of what nodes do.
_TYPES = {
    "copy": "memcpy",
    "fill": "memset",
    "draw": "kernel",
    "set": "kernel",
    "call": "host",
    "native": "host",
    "if": "conditional",
    "while": "conditional",
    "again": "empty",
}


def table(work: Sequence[Recorded], graph: int) -> dict[str, Any]:
    """As `torch.cuda.CUDAGraph.get_graph_data`: bodies of conditions are not part of it, and a warning says so."""
    bodies, numbers = _bodies(work), top(work)
    index = {number: at for at, number in enumerate(numbers)}
    nodes = [_node(work[number], at, graph) for at, number in enumerate(numbers)]
    edges = []
    for number in numbers:
        for before in sorted({_outermost(before, bodies) for before in work[number].after}):
            one, other = index[before], index[number]
            nodes[one]["dependents"].append(other)
            nodes[other]["dependencies"].append(one)
            edges.append({"from": one, "to": other, "from_port": 0, "to_port": 0, "type": 0})
    if bodies:
        warnings.warn("get_graph_data: what stands in the bodies of conditions is not in the table", stacklevel=3)
    return {"exec_graph_id": graph, "nodes": nodes, "edges": edges}


def top(work: Sequence[Recorded]) -> list[int]:
    """The numbers of what stands in no condition's body."""
    bodies = _bodies(work)
    return [number for number in range(len(work)) if number not in bodies]


def _node(piece: Recorded, at: int, graph: int) -> dict[str, Any]:
    function = piece.details.get("function", 0)
    named = getattr(function, "__qualname__", None) if callable(function) else None
    return {
        "index": at,
        "node_type": _TYPES[piece.what],
        "tools_id": graph << 32 | at,
        "graph_id": graph,
        "node_id": at,
        "kernel_name": {"draw": f"draw_{piece.details.get('law')}", "set": "set_condition"}.get(piece.what),
        "grid_dim": None,
        "block_dim": None,
        "shared_mem_bytes": None,
        "event_ptr": 0,
        "host_fn_addr": id(function) if callable(function) else function,
        "host_fn_name": named,
        "dependencies": [],
        "dependents": [],
    }


def _bodies(work: Sequence[Recorded]) -> dict[int, int]:
    """Of each node in a body, the innermost condition."""
    return {number: condition for condition, piece in enumerate(work) for number in piece.body}


def _outermost(number: int, bodies: dict[int, int]) -> int:
    while number in bodies:
        number = bodies[number]
    return number


def dot(work: Sequence[Recorded], *, verbose: bool = True) -> str:
    """A drawing: a box for each node, an arrow for each dependency, a frame around the body of each condition."""
    bodies = _bodies(work)
    lines = ["digraph graph_of_work {", "  node [shape=box, fontname=monospace];"]

    def draw(within: int | None, indent: str) -> Iterator[str]:
        for number, piece in enumerate(work):
            if bodies.get(number) != within:
                continue
            yield f'{indent}n{number} [label="{_label(number, piece, verbose=verbose)}"];'
            if piece.what in {"if", "while"}:
                yield f"{indent}subgraph cluster_{number} {{"
                yield f'{indent}  label="{piece.what} {number}";'
                yield from draw(number, indent + "  ")
                yield f"{indent}}}"

    lines += draw(None, "  ")
    lines += [f"  n{before} -> n{number};" for number, piece in enumerate(work) for before in piece.after]
    return "\n".join([*lines, "}", ""])


def _label(number: int, piece: Recorded, *, verbose: bool) -> str:
    details = piece.details
    words = [f"{number}: {piece.what}"]
    match piece.what:
        case "copy" | "fill":
            words[0] += f" {format_bytes(details['nbytes'])}"
        case "draw":
            words[0] += f" {details['law']}, {details['elements']} x {details['element']}"
        case "call":
            words[0] += f" {getattr(details['function'], '__qualname__', type(details['function']).__name__)}"
    if verbose:
        words += [
            f"{name} {value:#x}" if name in {"to", "source", "address", "argument"} else f"{name} {value}"
            for name, value in details.items()
            if isinstance(value, int) and not (piece.what == "draw" and name == "elements")
        ]
    return "\\n".join(word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
