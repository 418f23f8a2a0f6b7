"""`python -m forebay` is `forebay`."""

from __future__ import annotations

import sys

from forebay.cli import main

if __name__ == "__main__":
    sys.exit(main())
