"""List the devices, the versions, and the reasons for missing kinds of devices."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forebay.commands import command_output

if TYPE_CHECKING:
    from forebay.spi import Driver, Port

_OF_PYTORCH = "nvidia.com/Download/index.aspx\n"  # end of the line with which PyTorch begins the reason for cuda


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--abilities", action="store_true", help="list the abilities of each kind of device, including emulated ones"
    )


def run(args: argparse.Namespace) -> int:
    with command_output():
        if args.abilities:
            from forebay.commands import abilities

            abilities.show(as_json=args.json)
        elif args.json:
            print(json.dumps({"versions": versions(), "devices": devices(), "missing": missing()}, indent=2))
        else:
            _show()
    return 0


def versions() -> dict[str, str]:
    from importlib import metadata

    import forebay

    python = f"{platform.python_implementation()} {platform.python_version()}"
    found = {"forebay": forebay.__version__, "python": python}
    found |= {name: metadata.version(name) for name in ("numpy", "rich")}
    return {**found, "platform": platform.platform()}


def devices() -> list[dict[str, Any]]:
    """Return the properties of every device of every kind. Opens and closes each device."""
    from forebay import backends

    return [
        _describe(kind, driver, index) for kind, driver in backends.drivers().items() for index in range(driver.count())
    ]


def _describe(kind: str, driver: Driver, index: int) -> dict[str, Any]:
    from forebay.backends.plugins.probe import probe_device
    from forebay.spi import Emulates

    def read_properties(port: Port) -> dict[str, Any]:
        free, total = port.memory_info()
        device = asdict(port.props) | {"total_bytes": total, "free_bytes": free}
        device["capability"] = _capability(port.props.details)
        device["profile"] = driver.profile.name if isinstance(driver, Emulates) else None
        device["guarded"] = isinstance(driver, Emulates) and driver.guard
        return device

    properties, problem = probe_device(driver, index, read_properties)
    return (properties or {"kind": kind, "index": index}) | {"error": problem or None}


def _capability(details: Mapping[str, Any]) -> str | None:
    return f"{details['major']}.{details['minor']}" if "major" in details else None


def missing() -> dict[str, str]:
    """Return the reason for each missing kind of device, of the installed kinds and cuda, mps and mtia.

    The line with which PyTorch begins the reason for cuda is left out.
    """
    from forebay import backends

    kinds = dict.fromkeys([*backends.drivers(), "cuda", "mps", "mtia"])
    reasons = {kind: backends.why_not(kind) for kind in kinds}
    return {kind: reason.partition(_OF_PYTORCH)[2] or reason for kind, reason in reasons.items() if reason}


def _show() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from forebay._base.byte_sizes import format_bytes

    console = Console(highlight=False)
    found = devices()
    emulated: dict[str, str] = {}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("device", "name", "capability", "capacity", "free", "CPU access"):
        table.add_column(heading, justify="right" if heading in ("capacity", "free") else "left")
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    for device in found:
        name = f"{device['kind']}:{device['index']}"
        if device["error"]:
            lines.add_row(Text(name, "red"), Text(f"cannot be used: {device['error']}"))
        else:
            sizes = format_bytes(device["total_bytes"]), format_bytes(device["free_bytes"])
            reads = "yes" if device["host_visible"] else "no, guarded" if device["guarded"] else "no"
            table.add_row(name, Text(device["name"]), device["capability"] or "", *sizes, reads)
            if device["profile"]:
                emulated[device["kind"]] = f"emulated with profile {device['profile']}"
    if table.row_count:
        console.print(table)

    for kind, text in emulated.items():
        lines.add_row(Text(kind, "cyan"), Text(text))
    for kind, reason in missing().items():
        lines.add_row(Text(f"no {kind}", "yellow"), Text(reason))
    lines.add_row()
    for name, version in versions().items():
        lines.add_row(name, Text(version))
    console.print(lines)
