"""Suggestions for misspelt names in error messages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean '...'?` with the most similar known name; "" if none is similar.

    >>> did_you_mean("cdua", ["cuda", "mps"]), did_you_mean("tpu", ["cuda", "mps"])
    ("; did you mean 'cuda'?", '')
    """
    from difflib import get_close_matches  # imported late: only errors need it

    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
