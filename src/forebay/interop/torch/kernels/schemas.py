"""Queries of the schemas of operators."""

from __future__ import annotations

from typing import Any

__all__ = ["written_arguments"]


def written_arguments(operator: Any) -> dict[int, str]:
    """Return the positions and names of the arguments that an operator writes."""
    return {
        at: argument.name for at, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }  # fmt: skip
