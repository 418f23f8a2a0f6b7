"""Choice of sites: their depth, libraries, a pattern, and categories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DEFAULT_CHOICE", "SiteChoice", "site_choice"]

_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """Choice of the sites of stacks."""

    depth: int = 1  #: frames of the user's own code that make a site
    library: bool = False  #: whether frames of libraries count like the user's own
    pattern: str = ""  #: expression for frames that are sites wherever a stack has one; "" for none
    categories: tuple[tuple[str, str], ...] = ()  #: names and expressions that replace the sites
    split: tuple[str, ...] = ()  #: labels of the sites that are split by their lines in libraries


DEFAULT_CHOICE = SiteChoice()


def site_choice(
    *, depth: int = 1, library: bool = False, pattern: str = "", categories: Sequence[str] = ()
) -> SiteChoice:
    """Return a choice after checking it.

    Parameters
    ----------
    depth : int, default 1
        Frames of the user's own code that make a site.
    library : bool, default False
        Count frames of libraries like the user's own.
    pattern : str, default ""
        Regular expression, searched in `file:line name`. The innermost frame that has it is the site.
    categories : sequence of str, default ()
        Texts `NAME=REGEX`. A stack belongs to the first category that one of its frames has.

    Raises
    ------
    ValueError
        If an expression or a number is invalid.

    Examples
    --------
    >>> site_choice(categories=["optimizer=optim/"]).categories
    (('optimizer', 'optim/'),)
    """
    if not 1 <= depth <= _MAX_DEPTH:
        raise ValueError(f"the depth of a site is from 1 to {_MAX_DEPTH}, not {depth}")
    named = []
    for text in categories:
        name, equals, expression = text.partition("=")
        if not (name and equals and expression):
            raise ValueError(f"a category is NAME=REGEX, such as optimizer=torch/optim/, not {text!r}")
        named.append((name, expression))
    for expression in (pattern, *(expression for _, expression in named)):
        try:
            re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{expression!r} is no regular expression: {error}") from None
    return SiteChoice(depth, library, pattern, tuple(named))
