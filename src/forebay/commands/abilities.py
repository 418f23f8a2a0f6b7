"""What `forebay info --abilities` shows: which kind of device does what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.backends.ability_table import Column

_ROOM = 110  # characters of a terminal where each ability's sentence has its place, too


def show(*, as_json: bool) -> None:
    from forebay.backends.ability_table import columns

    found = columns()
    if as_json:
        print(json.dumps(as_data(found), indent=2))
    else:
        from rich.console import Console

        draw(Console(highlight=False), found)


def as_data(found: list[Column]) -> dict[str, Any]:
    from forebay.backends.ability_table import meanings

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
    abilities = [{"name": name, "of": whose, "meaning": meaning} for name, whose, meaning in meanings()]
    return {"kinds": kinds, "abilities": abilities}


def draw(console: Console, found: list[Column]) -> None:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from forebay.backends.ability_table import meanings

    wide = console.width >= _ROOM
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ability", no_wrap=True)
    table.add_column("of", no_wrap=True)
    good = [column for column in found if not column.error]
    for column in good:
        table.add_column(column.title.replace(", ", "\n"), justify="center")
    if wide:
        table.add_column("which is", ratio=1)
    before = ""
    for name, whose, meaning in meanings():
        if before not in ("", whose):
            table.add_section()
        marks = [Text("yes", "green") if name in column.has else Text("·", "dim") for column in good]
        table.add_row(name, whose if whose != before else "", *marks, *([meaning] if wide else []))
        before = whose
    table.add_section()
    console.print(table)
    for column in found:
        if column.error:
            console.print(Padding(Text.assemble((column.title, "red"), f"  {column.error}"), (0, 1, 1, 1)))
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_row(Text("verified on", "bold"))
    for column in good:
        where = "; ".join(column.verified_on)
        if column.emulated:
            where = f"no hardware: this machine stands in for {column.name.removesuffix(' (emulated)')}"
        lines.add_row(Text(column.kind, "cyan"), Text(where or "no hardware yet"))
    console.print(Padding(lines, (0, 1)))
