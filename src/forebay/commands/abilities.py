"""Output of `forebay info --abilities`: the abilities of each kind of device."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.backends.ability_table import Column

_WIDE = 110  # minimum terminal width for the column of descriptions


def show(*, as_json: bool) -> None:
    from forebay.backends.ability_table import columns

    found = columns()
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    else:
        from rich.console import Console

        draw(Console(highlight=False), found)


def as_data(found: list[Column]) -> dict[str, Any]:
    from forebay.backends.ability_table import ability_summaries

    kinds = [
        {
            "kind": column.kind,
            "name": column.name,
            "emulated": column.emulated,
            "abilities": sorted(column.has),
            "verified_on": list(column.verified_on),
            "error": column.error or None,
        }
        for column in found
    ]
    abilities = [{"name": name, "of": protocol, "meaning": meaning} for name, protocol, meaning in ability_summaries()]
    return {"kinds": kinds, "abilities": abilities}


def draw(console: Console, found: list[Column]) -> None:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from forebay.backends.ability_table import ability_summaries

    wide = console.width >= _WIDE
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ability", no_wrap=True)
    table.add_column("of", no_wrap=True)
    usable = [column for column in found if not column.error]
    for column in usable:
        table.add_column(column.title.replace(", ", "\n"), justify="center")
    if wide:
        table.add_column("description", ratio=1)
    previous = ""
    for name, protocol, meaning in ability_summaries():
        if previous not in ("", protocol):
            table.add_section()
        marks = [Text("yes", "green") if name in column.has else Text("·", "dim") for column in usable]
        table.add_row(name, protocol if protocol != previous else "", *marks, *([meaning] if wide else []))
        previous = protocol
    table.add_section()
    console.print(table)
    for column in found:
        if column.error:
            console.print(Padding(Text.assemble((column.title, "red"), f"  {column.error}"), (0, 1, 1, 1)))
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_row(Text("verified on", "bold"))
    for column in usable:
        where = "; ".join(column.verified_on)
        if column.emulated:
            where = f"no hardware: emulates {column.name.removesuffix(' (emulated)')}"
        lines.add_row(Text(column.kind, "cyan"), Text(where or "no hardware yet"))
    console.print(Padding(lines, (0, 1)))
