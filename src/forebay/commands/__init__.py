"""The commands, one module each: `add_arguments(parser)` defines the options, `run(args)` returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from forebay._base.byte_sizes import parse_bytes


class CommandError(Exception):
    """A one-line error message for the user. The exit status is 2."""


class ProgramError(Exception):
    """The program cannot be run: Python's own message. The exit status is 1, as Python's."""


def size_argument(text: str) -> int:
    """Parse an argument that is a size in bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def reserve_argument(text: str) -> int:
    """Parse an argument that is a size in bytes, or 0."""
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace("write a number", "write 0, or a number")) from error


def count_argument(text: str) -> int:
    """Parse an argument that is an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


@contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Context manager: Ctrl-C ends the process without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)  # the status that a shell reports after Ctrl-C


@contextmanager
def command_output() -> Iterator[None]:
    """Context manager for printing commands: a closed pipe and Ctrl-C end the process without a traceback."""
    try:
        try:
            yield
        finally:  # argparse raises SystemExit after it has printed its help
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes stdout again at exit
        sys.exit(1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise CommandError(f"cannot write: {error.strerror}") from error
    except KeyboardInterrupt:
        sys.exit(130)  # the status that a shell reports after Ctrl-C
