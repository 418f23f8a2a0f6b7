"""Entry point of `python -m forebay`, which is equivalent to the `forebay` command."""

from __future__ import annotations

import sys

from forebay.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
