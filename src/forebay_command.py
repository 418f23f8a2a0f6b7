"""Entry point of the `forebay` command, outside the package: Ctrl-C during its import ends without a traceback."""

from __future__ import annotations

import sys


def main() -> int:
    """Import forebay and run the command. Exceptions of the program that `run` executes propagate."""
    try:
        from forebay.commands import cli
    except KeyboardInterrupt:
        sys.exit(130)  # the status that a shell reports after Ctrl-C
    return cli.main()
