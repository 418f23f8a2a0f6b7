"""Autograd nodes in native stacks: their names, and the lines of the forward pass that made them."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["EXPRESSIONS", "NOT_NODES", "node_of", "nodes_of_operator", "operator_of"]

_MAX_NAME = 1 << 12  # characters
_NODE = re.compile(r"(?:^|[ :])autograd::(?:generated::)?(?:CppNode<)?(?:\w+::)*(\w+)>?::apply\b")
NOT_NODES = frozenset(("PyNode", "Engine", "Node"))  # of a function in Python, whose frames are in the stack
_OPERATOR = re.compile(r"(?:^|[ :])at::_ops::(\w+)::(?:call|redispatch)\b")
EXPRESSIONS = {"node": _NODE, "operator": _OPERATOR}  #: by their names in the viewer page


@lru_cache(maxsize=1 << 14)
def node_of(name: str) -> str:
    """Return the autograd node whose `apply` a native function is; "" if it is none.

    Examples
    --------
    >>> node_of("torch::autograd::generated::SoftmaxBackward0::apply(std::vector<at::Tensor>&&)")
    'SoftmaxBackward0'
    """
    found = _NODE.search(name[:_MAX_NAME])
    return found[1] if found and found[1] not in NOT_NODES else ""


@lru_cache(maxsize=1 << 14)
def operator_of(name: str) -> str:
    """Return the operator and overload that a native function calls; "" if it calls none.

    Examples
    --------
    >>> operator_of("at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)")
    'mul_Tensor'
    """
    found = _OPERATOR.search(name[:_MAX_NAME])
    return found[1] if found else ""


@lru_cache(maxsize=1 << 12)
def nodes_of_operator(operator: str) -> frozenset[str]:
    """Return the names, without "Backward" and number, of the nodes that an operator may make.

    PyTorch derives the name of a node from that of its operator, without saying where the overload begins.

    Examples
    --------
    >>> sorted(nodes_of_operator("mul_Tensor"))
    ['Mul', 'MulTensor']
    """
    words = [word[:1].upper() + word[1:] for word in operator.split("_") if word]
    return frozenset("".join(words[: end + 1]) for end in range(len(words)))
