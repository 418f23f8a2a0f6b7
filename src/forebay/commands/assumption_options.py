"""Options of `fit` and `run` about assumed values, the check of kernels, and the limit of seconds."""

from __future__ import annotations

import argparse
import math

from forebay._base.assumption_choices import AssumptionChoices
from forebay.commands import CommandError

__all__ = ["add_assumption_options", "chosen_assumptions"]


def add_assumption_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of a command."""
    parser.add_argument(
        "--assume-mask", type=_share, metavar="FRACTION",
        help="without values: the share of elements that masks, nonzero() and unique() select, above 0 and at most 1 "
        "(default: 1, all)",
    )  # fmt: skip
    parser.add_argument(
        "--assume-routing", choices=("balanced", "worst"),
        help="without values: tokens are routed to experts evenly (default), or all to the first",
    )  # fmt: skip
    parser.add_argument(
        "--check-assumptions", action="store_true",
        help="run again with the opposite of the assumed values, and say whether the peak depends on them",
    )  # fmt: skip
    parser.add_argument(
        "--check-kernels", action="store_true",
        help="list the kernels of Triton with their shared memory, registers and spills on the card and, with "
        "--compute, their accesses outside tensors",
    )  # fmt: skip
    parser.add_argument(
        "--max-seconds", type=_seconds, metavar="S",
        help="end a run that takes longer, with the line where it was (default: no limit)",
    )  # fmt: skip


def chosen_assumptions(args: argparse.Namespace, mode: str) -> AssumptionChoices:
    """Return the choices among assumed values. Raises CommandError if the mode assumes none."""
    given = {
        "--assume-mask": args.assume_mask is not None,
        "--assume-routing": args.assume_routing is not None,
        "--check-assumptions": args.check_assumptions,
    }
    if mode != "shapes" and any(given.values()):
        name = next(name for name, is_given in given.items() if is_given)
        raise CommandError(f"{name} requires --shapes-only: values are assumed only there")
    mask = 1.0 if args.assume_mask is None else args.assume_mask
    return AssumptionChoices(mask, args.assume_routing or "balanced")


def _share(text: str) -> float:
    number = _number(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and at most 1, such as 0.25")
    return number


def _seconds(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
