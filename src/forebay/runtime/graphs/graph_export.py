"""Export of captured graphs: a table of nodes for profilers, and Graphviz DOT."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay._base.byte_sizes import format_bytes
from forebay.spi import CapturedNode

__all__ = ["node_table", "to_dot", "top_level"]

# PyTorch's node types.
_NODE_TYPES = {
    "copy": "memcpy",
    "fill": "memset",
    "draw": "kernel",
    "strided": "kernel",
    "set": "kernel",
    "call": "host",
    "native": "host",
    "external": "kernel",
    "if": "conditional",
    "while": "conditional",
    "again": "empty",
    "record_event": "event_record",
    "wait_event": "wait_event",
}


def node_table(work: Sequence[CapturedNode], graph: int) -> dict[str, Any]:
    """Return the table of `torch.cuda.CUDAGraph.get_graph_data`. Warns if bodies of conditional nodes are omitted."""
    bodies, numbers = _bodies(work), top_level(work)
    index = {number: at for at, number in enumerate(numbers)}
    nodes = [_node(work[number], at, graph) for at, number in enumerate(numbers)]
    edges = []
    for number in numbers:
        for before in sorted({_outermost(other, bodies) for other in work[number].dependencies}):
            source, target = index[before], index[number]
            nodes[source]["dependents"].append(target)
            nodes[target]["dependencies"].append(source)
            edges.append({"from": source, "to": target, "from_port": 0, "to_port": 0, "type": 0})
    if bodies:
        warnings.warn("get_graph_data: nodes in the bodies of conditional nodes are omitted", stacklevel=3)
    return {"exec_graph_id": graph, "nodes": nodes, "edges": edges}


def top_level(work: Sequence[CapturedNode]) -> list[int]:
    """Return the numbers of the nodes outside all bodies of conditional nodes."""
    bodies = _bodies(work)
    return [number for number in range(len(work)) if number not in bodies]


def _node(recorded: CapturedNode, at: int, graph: int) -> dict[str, Any]:
    event = recorded.details.get("event", 0)
    function = 0 if event else recorded.details.get("function", 0)
    function_name = getattr(function, "__qualname__", None) if callable(function) else None
    return {
        "index": at,
        "node_type": _NODE_TYPES[recorded.op],
        "tools_id": graph << 32 | at,
        "graph_id": graph,
        "node_id": at,
        "kernel_name": _kernel_name(recorded),
        "grid_dim": None,
        "block_dim": None,
        "shared_mem_bytes": None,
        "event_ptr": event,
        "host_fn_addr": id(function) if callable(function) else function,
        "host_fn_name": function_name,
        "dependencies": [],
        "dependents": [],
    }


def _kernel_name(recorded: CapturedNode) -> str | None:
    details = recorded.details
    match recorded.op:
        case "draw":
            return f"draw_{details['law']}"
        case "strided":
            return f"{_strided_name(details)}_{details['source_element'] or details['element']}"
    return None


def _strided_name(details: Mapping[str, Any]) -> str:
    return "fill" if details["copy"].value else "convert" if details["source_element"] else "copy"


def _bodies(work: Sequence[CapturedNode]) -> dict[int, int]:
    """Return the innermost conditional node of each node in a body."""
    return {number: condition for condition, recorded in enumerate(work) for number in recorded.body}


def _outermost(number: int, bodies: dict[int, int]) -> int:
    while number in bodies:
        number = bodies[number]
    return number


def to_dot(work: Sequence[CapturedNode], *, verbose: bool = True) -> str:
    """Return DOT text: a box per node, an arrow per dependency, a cluster per body of a conditional node."""
    bodies = _bodies(work)
    lines = ["digraph graph_of_work {", "  node [shape=box, fontname=monospace];"]

    def lines_of(body: int | None, indent: str) -> Iterator[str]:
        for number, recorded in enumerate(work):
            if bodies.get(number) != body:
                continue
            yield f'{indent}n{number} [label="{_label(number, recorded, verbose=verbose)}"];'
            if recorded.op in {"if", "while"}:
                yield f"{indent}subgraph cluster_{number} {{"
                yield f'{indent}  label="{recorded.op} {number}";'
                yield from lines_of(number, indent + "  ")
                yield f"{indent}}}"

    lines += lines_of(None, "  ")
    lines += [f"  n{before} -> n{number};" for number, recorded in enumerate(work) for before in recorded.dependencies]
    return "\n".join([*lines, "}", ""])


def _label(number: int, recorded: CapturedNode, *, verbose: bool) -> str:
    details = recorded.details
    words = [f"{number}: {recorded.op}"]
    match recorded.op:
        case "copy" | "fill":
            words[0] += f" {format_bytes(details['nbytes'])}"
        case "draw":
            words[0] += f" {details['law']}, {details['elements']} x {details['element']}"
        case "strided":
            elements = f"{details['elements']} x {details['source_element'] or details['element']}"
            words[0] = f"{number}: {_strided_name(details)} {elements}"
            words[0] += f" to {details['element']}" if details["source_element"] else ""
        case "call":
            words[0] += f" {getattr(details['function'], '__qualname__', type(details['function']).__name__)}"
    if verbose:
        words += [
            f"{name} {value:#x}" if name in {"to", "source", "address", "argument"} else f"{name} {value}"
            for name, value in details.items()
            if isinstance(value, int) and name != "elements"
        ]
    return "\\n".join(word.replace("\\", "\\\\").replace('"', '\\"') for word in words)
