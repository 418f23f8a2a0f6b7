"""Queries of the schemas of operators."""

from __future__ import annotations

from typing import Any

__all__ = ["is_view", "written_arguments"]

_RUNNING = ("running_mean", "running_var")
# Operators that write arguments which their schemas do not mark.
_UNMARKED = {
    "aten::native_batch_norm": _RUNNING, "aten::batch_norm_gather_stats": _RUNNING,
    "aten::batch_norm_gather_stats_with_counts": _RUNNING, "aten::batch_norm_update_stats": _RUNNING,
    "aten::cudnn_batch_norm": _RUNNING,
}  # fmt: skip


def is_view(operator: Any) -> bool:
    """Return True if results share the memory of arguments that the operator does not write."""
    returned = [each.alias_info for each in operator._schema.returns]
    return bool(returned) and all(each is not None and not each.is_write for each in returned)


def written_arguments(operator: Any) -> dict[int, str]:
    """Return the positions and names of the arguments that an operator writes."""
    unmarked = _UNMARKED.get(operator._schema.name, ())
    return {
        at: argument.name for at, argument in enumerate(operator._schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in unmarked
    }  # fmt: skip
