"""Write memory snapshots as one page for the browser, which needs no network.

FILE is a forebay snapshot or a PyTorch pickle (torch.cuda.memory._dump_snapshot); no code in it is executed. The page
shows stacked allocations over time with their stacks, segments and blocks at any moment, a flame graph, the allocation
sites, growth between two moments, and why memory ran out. All devices of all files are on it, with a choice between
them; of each file, those that ran out of memory come first. Devices without memory are left out if others have some.
"""

from __future__ import annotations

import argparse
import json
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.commands import CommandError, command_output
from forebay.commands.output_files import add_overwrite, check_output
from forebay.commands.site_options import add_site_options, chosen_sites
from forebay.commands.snapshot_files import load_snapshots, ran_out, used_devices

if TYPE_CHECKING:
    from forebay.snapshot import Snapshot

DEFAULT_OUTPUT = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshots", type=Path, nargs="+", metavar="FILE", help="a snapshot file")
    parser.add_argument(
        "--output", dest="page", type=Path, default=Path(DEFAULT_OUTPUT), metavar="PAGE",
        help=f"the page to write; an earlier page is replaced (default: {DEFAULT_OUTPUT})",
    )  # fmt: skip
    add_overwrite(parser)
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--json", action="store_true", help="print the figures of the devices on the page, as JSON")
    add_site_options(parser)


def run(args: argparse.Namespace) -> int:
    check_output(args.page, args.snapshots, "--output", overwrite=args.overwrite)
    choice = chosen_sites(args)
    found = [(path, snapshot) for path in args.snapshots for snapshot in used_devices(load_snapshots(path, choice))]
    _write(found, args.page)
    with command_output():
        print(_json(found, args.page) if args.json else args.page)
    if args.open:
        import webbrowser

        if not webbrowser.open(args.page.absolute().as_uri()):
            raise CommandError("no browser could be started; open the page manually")
    return 0


def _json(found: list[tuple[Path, Snapshot]], page: Path) -> str:
    from forebay.snapshot.report.figures import device_figures

    devices = [
        {"file": str(path), "name": name, "figures": device_figures(snapshot)}
        for (path, snapshot), name in zip(found, _names(found), strict=True)
    ]
    return json.dumps({"page": str(page), "devices": devices}, indent=2)


def _names(found: list[tuple[Path, Snapshot]]) -> list[str]:
    """Return the names on the page: the device, the file if there are several, and whether memory ran out."""
    paths = {path for path, _ in found}
    marks = [" · out of memory" if len(found) > 1 and ran_out(snapshot) else "" for _, snapshot in found]
    if len(paths) < 2:
        return [snapshot.device + mark for (_, snapshot), mark in zip(found, marks, strict=True)]
    same = len({path.name for path in paths}) < len(paths)
    return [
        f"{path if same else path.name} · {snapshot.device}{mark}"
        for (path, snapshot), mark in zip(found, marks, strict=True)
    ]


def _write(found: list[tuple[Path, Snapshot]], output: Path) -> None:
    from forebay._base.atomic_write import atomic_write
    from forebay.snapshot.report import html

    if not found:
        raise CommandError("the files contain no device: there is nothing to show")
    try:
        with atomic_write(output) as file:
            text = TextIOWrapper(file, encoding="utf-8")
            html.write_several([each for _, each in found], text, _names(found), [str(path) for path, _ in found])
            text.detach()  # otherwise it would close the file
    except OSError as error:
        raise CommandError(f"cannot write the page {str(output)!r}: {error.strerror or error}") from error
