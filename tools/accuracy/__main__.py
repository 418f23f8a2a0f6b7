"""Compare predictions with public measurements: python3 dev.py accuracy --data FOLDER [options] [TABLE ...]

FOLDER has the tables (xmem.csv, ...). The rows run as programs without values, as many at a time as there are
processors, and the answers are kept in tools/accuracy/predictions.jsonl, so that an interrupted run continues where it
was. With --write, docs/accuracy.md and its plots are written from all answers that there are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from accuracy.measurements import TABLES, measurements
from accuracy.predictions import predict, read_predictions

PREDICTIONS = Path(__file__).parent / "predictions.jsonl"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py accuracy", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the tables of measurements")
    parser.add_argument("--models", type=int, metavar="N", help="only N models of timm, a sample")
    parser.add_argument("--minutes", type=float, default=180, metavar="M", help="begin no run after M minutes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at a time")
    parser.add_argument("--predictions", type=Path, default=PREDICTIONS, metavar="FILE", help="where answers are kept")
    parser.add_argument("--again", action="store_true", help="forget the answers")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"tables: {', '.join(TABLES)} (default: all)")
    options = parser.parse_args(arguments)
    if unknown := [each for each in options.tables if each not in TABLES]:
        parser.error(f"unknown table {unknown[0]!r}; known: {', '.join(TABLES)}")
    if options.again:
        options.predictions.unlink(missing_ok=True)
    rows = {name: list(measurements(options.data, name)) for name in TABLES}
    if options.models is not None:
        chosen = [*dict.fromkeys(each.model for each in rows["timm_a100"])][: options.models]
        rows["timm_a100"] = [each for each in rows["timm_a100"] if each.model in chosen]
    end = time.monotonic() + 60 * options.minutes
    for name in options.tables or TABLES:
        predict(rows[name], options.predictions, options.jobs, lambda: time.monotonic() > end, print)
    known = read_predictions(options.predictions)

    from accuracy.page import report, write_page

    print(report(rows, known))
    if options.write:
        write_page(rows, known)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
