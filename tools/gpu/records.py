"""Files with the results of a run: docs/benchmarks-gpu.md and the entry of verified hardware."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Sequence
from pathlib import Path

from gpu.card import Card
from gpu.parts import Result

__all__ = ["PAGE", "VERIFIED", "entry", "not_failed", "page", "passed", "text_of_entry", "with_entry"]

HOW = "python3 dev.py gpu"
PAGE, VERIFIED = "benchmarks-gpu.md", "verified.toml"  # files in the folder of a run


def passed(results: Sequence[Result]) -> bool:
    """Return True if every required part ran to its end and is ok."""
    return all(each.outcome.status == "ok" or not each.part.required for each in results)


def not_failed(results: Sequence[Result]) -> bool:
    """Return True if no part failed and every required part ran, to its end or until its time was over."""
    return all(
        each.outcome.status in ("ok", "incomplete") or (each.outcome.status == "not run" and not each.part.required)
        for each in results
    )


def page(results: Sequence[Result], card: Card, day: dt.date, command: str) -> str:
    """Return the page of results."""
    rows = [
        f"| {each.part.title} | {each.outcome.status} | {each.outcome.detail} | {each.seconds:.0f} s |"
        for each in results
    ]
    heading = ["---", "orphan: true", "---", "", "# Results on NVIDIA GPUs", ""]  # in no table of contents
    if card.software:
        heading += ["**This is a rehearsal on the software driver: nothing was verified on hardware.**", ""]
    elif not passed(results):
        heading += ["**Not all required parts have passed: nothing is verified.**", ""]
    lines = [
        *heading,
        *(f"* {name}: {value}" for name, value in _facts(card, day, command)),
        "",
        "| part | result | detail | time |",
        "|---|---|---|---|",
        *rows,
    ]
    for each in results:
        if each.outcome.lines:
            lines += ["", f"## {each.part.title}", "", *each.outcome.lines]
    return "\n".join(lines) + "\n"


def entry(results: Sequence[Result], card: Card, day: dt.date) -> str:
    """Return the entry for `verified.toml`."""
    details = "; ".join(
        f"{each.part.name}: {'' if each.outcome.status == 'ok' else 'failed, '}{each.outcome.detail}"
        for each in results
        if each.outcome.status in ("ok", "failed")
    )
    return text_of_entry(_hardware(card), day, f"{HOW}: {details}")


def text_of_entry(hardware: str, day: dt.date, how: str) -> str:
    """Return an entry as TOML."""
    lines = ["[[run]]", 'kind = "cuda"', f"on = {_text(hardware)}", f"when = {day.isoformat()}", f"how = {_text(how)}"]
    return "\n".join([*lines, ""])


def with_entry(path: Path, new: str) -> str:
    """Return the text of a file of entries with one more, which replaces that of the same hardware."""
    before = path.read_text() if path.exists() else ""
    added = tomllib.loads(new)["run"][0]
    kept = [
        part
        for number, part in enumerate(before.split("[[run]]\n"))
        if not number or not _same(tomllib.loads("[[run]]\n" + part)["run"][0], added)
    ]
    text = "[[run]]\n".join(kept).rstrip("\n")
    return f"{text}\n\n{new}" if text else new


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return (one["kind"], one["on"]) == (other["kind"], other["on"])


def _hardware(card: Card) -> str:
    return f"{card.name}, driver {card.driver}"


def _facts(card: Card, day: dt.date, command: str) -> list[tuple[str, str]]:
    count = f" (one of {card.count})" if card.count > 1 else ""
    return [
        ("card", card.name + count),
        ("driver", card.driver),
        ("date", day.isoformat()),
        ("command", f"`{command}`"),
    ]


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
