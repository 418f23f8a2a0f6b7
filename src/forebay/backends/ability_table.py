"""Table of the abilities of every device kind, real or emulated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from forebay.backends import EMULATED, drivers, emulated_driver
from forebay.backends.common.abilities import BY_OWNER
from forebay.backends.plugins.probe import probe_device
from forebay.spi import Driver, Port

__all__ = ["Column", "ability_summaries", "columns", "markdown", "verified_on"]


@dataclass(frozen=True)
class Column:
    """One device kind: its abilities, the hardware on which they were verified, and any error of the device."""

    kind: str
    name: str
    emulated: bool
    has: frozenset[str] = frozenset()
    verified_on: tuple[str, ...] = ()
    error: str = ""

    @property
    def title(self) -> str:
        return f"{self.kind}, emulated" if self.emulated else self.kind


def columns(*, installed: bool = True) -> list[Column]:
    """Return the kinds that have devices here, then those that can only be emulated.

    Opens and closes one device of each kind. Without `installed`, return only the built-in kinds, which exist on any
    machine.
    """
    found = [
        _column_of(driver) for kind, driver in drivers().items() if kind == "cpu" or (installed and driver.count())
    ]
    kinds = {column.kind for column in found}
    return [*found, *(_column_of(emulated_driver(kind)) for kind in EMULATED if kind not in kinds)]


def ability_summaries() -> Iterator[tuple[str, str, str]]:
    """Yield the name of each ability, its owner ("Queue", "Port" or "Driver") and the summary of its docstring."""
    for owner, abilities in BY_OWNER.items():
        for ability in abilities:
            words = " ".join((ability.__doc__ or "").split())
            yield ability.__name__, owner, f"{words.partition('. ')[0].removesuffix('.')}."


@cache
def verified_on() -> dict[str, tuple[str, ...]]:
    """Return the hardware on which each kind's backend has passed the conformance suite (backends/verified.toml)."""
    text = (resources.files(__package__) / "verified.toml").read_text()
    found: dict[str, tuple[str, ...]] = {}
    for run in tomllib.loads(text)["run"]:
        found[run["kind"]] = (*found.get(run["kind"], ()), f"{run['on']} ({run['when']})")
    return found


def markdown(table: list[Column]) -> str:
    """Return the table as Markdown, for the documentation."""
    rows = [["ability", "of", *(column.title for column in table)]]
    rows += [[f"`{name}`", owner, *_cells(name, table)] for name, owner, _ in ability_summaries()]
    rows += [["**verified on**", "", *("; ".join(column.verified_on) or "no hardware" for column in table)]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def _cells(ability: str, table: list[Column]) -> list[str]:
    return ["yes" if ability in column.has else "no" for column in table]


def _column_of(driver: Driver) -> Column:
    def inspect(port: Port) -> Column:
        props = port.props
        objects = {"Queue": port.queue(), "Port": port, "Driver": driver}
        has = {
            ability.__name__
            for owner, abilities in BY_OWNER.items()
            for ability in abilities
            if isinstance(objects[owner], ability)
        }
        verified = () if props.emulated else verified_on().get(props.kind, ())
        return Column(props.kind, props.name, props.emulated, frozenset(has), verified)

    column, error = probe_device(driver, 0, inspect)
    return column or Column(driver.kind, "", emulated=False, error=error)
