"""Options of the commands that show allocation sites."""

from __future__ import annotations

import argparse

from forebay.commands import CommandError
from forebay.records.site_choice import SiteChoice, site_choice

__all__ = ["add_site_options", "chosen_sites"]


def add_site_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that change what a site is."""
    group = parser.add_argument_group("sites")
    group.add_argument(
        "--depth", type=int, default=1, metavar="N",
        help="lines of your own code that make a site: the innermost one (default), and N - 1 of its callers",
    )  # fmt: skip
    group.add_argument("--library", action="store_true", help="take the innermost line, also of a library")
    group.add_argument(
        "--site", default="", metavar="REGEX",
        help="take the innermost frame in whose `file:line name` the expression is found, where a stack has one",
    )  # fmt: skip
    group.add_argument(
        "--category", action="append", default=[], metavar="NAME=REGEX",
        help="show categories instead of sites: a stack belongs to the first one whose expression is found in a frame; "
        "give the option once for each",
    )  # fmt: skip


def chosen_sites(args: argparse.Namespace) -> SiteChoice:
    """Return what the options say about sites."""
    try:
        return site_choice(depth=args.depth, library=args.library, pattern=args.site, categories=args.category)
    except ValueError as error:
        raise CommandError(str(error)) from error
