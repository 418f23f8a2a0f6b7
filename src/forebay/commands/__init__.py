"""The commands, a module each: `arguments(parser)` says what it takes, `run(args)` does it and gives its status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.byte_sizes import parse_bytes


class Failure(Exception):
    """What a command could not do, in one line for the user. The status is 2."""


def size(text: str) -> int:
    """The type of an argument that is a size."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def showing() -> Iterator[None]:
    """Around a command that prints: a reader that goes away and Ctrl-C end it without a word."""
    try:
        try:
            yield
        finally:  # argparse leaves by SystemExit when it has printed its help
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what the interpreter flushes as it leaves
        sys.exit(1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise Failure(f"cannot write: {error.strerror}") from error
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell says of a program that died of Ctrl-C
