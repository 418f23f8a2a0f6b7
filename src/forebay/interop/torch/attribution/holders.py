"""The variables that hold the memory of a program, directly or through autograd's graph."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from forebay.interop.torch.attribution.marks import records_of
from forebay.interop.torch.attribution.model_copies import ModelCopies
from forebay.interop.torch.attribution.records import DeviceUse
from forebay.interop.torch.attribution.user_frames import Site
from forebay.interop.torch.attribution.variables import HeldTensor, Variable, tensors_of_program

__all__ = ["Holders"]

_MOST_NODES = 200_000
_LARGEST_NUMBER = 1 << 62  # nodes that accumulate gradients have the largest number of all


class Holders:
    """The holders that walks over the program's variables have found.

    A tensor that autograd has saved is no object of Python. What a node has saved is told by numbers: nodes are
    numbered in the order of the operators, so a record that was allocated when node *n* was the newest one belongs to
    the operator of this node, and a graph that contains the node holds it. No saved tensor is unpacked, which would
    call hooks of the program.
    """

    def __init__(self) -> None:
        self.sites: dict[Site, Variable] = {}  # the holder of what a line has allocated, at the last walk

    def walk(self, frame: FrameType | None, uses: Iterable[DeviceUse], copies: ModelCopies) -> None:
        """Note the holders of all live records. `frame` is the innermost one of the program."""
        with torch._C.DisableTorchFunctionSubclass():  # attributes of subclasses would call their code
            found = [*tensors_of_program(frame)]
            direct: set[int] = set()
            for each in found:
                for record in records_of(each.tensor):
                    record.holder = each.variable
                    direct.add(id(record))
                    if record.site is not None:
                        self.sites[record.site] = each.variable
            copies.mark_containers(_containers(found))
            nodes = _nodes(found)
        for use in uses:
            for record in [*use.live.values()]:
                if id(record) not in direct and record.node in nodes:
                    record.holder = nodes[record.node]
                    if record.site is not None:
                        self.sites[record.site] = record.holder


def _containers(found: Iterable[HeldTensor]) -> list[tuple[Any, list[tuple[Any, torch.Tensor]]]]:
    by_container: dict[int, tuple[Any, list[tuple[Any, torch.Tensor]]]] = {}
    for each in found:
        if each.container is not None:
            by_container.setdefault(id(each.container), (each.container, []))[1].append((each.key, each.tensor))
    return [*by_container.values()]


def _nodes(found: Iterable[HeldTensor]) -> dict[int, Variable]:
    """Return the numbers of the nodes in the graphs of tensors, and the variable that holds each, the nearest first."""
    numbers: dict[int, Variable] = {}
    for each in found:
        node = torch._C.TensorBase.grad_fn.__get__(each.tensor)
        pending = [] if node is None else [node]
        while pending and len(numbers) < _MOST_NODES:
            node = pending.pop()
            number = node._sequence_nr()  # has no public name
            if number < _LARGEST_NUMBER and number not in numbers:
                numbers[number] = each.variable
                pending += [before for before, _ in node.next_functions if before is not None]
    return numbers
