"""Which device does what: every kind of device there is, or that can be emulated, and its abilities."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from forebay.backends import EMULATED, drivers, emulator
from forebay.backends.common.abilities import BY_OWNER
from forebay.backends.plugins.probe import look
from forebay.spi import Driver, Port

__all__ = ["Column", "columns", "markdown", "meanings", "verified_on"]


@dataclass(frozen=True)
class Column:
    """One kind of device: what it can do, on what hardware that was seen, and what is wrong with it."""

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
    """First the kinds that have devices here, then those of which only emulated ones can be had.

    One device of each is opened, looked at and closed. Not `installed`: only what is forebay's own, on any machine.
    """
    found = [_look(driver) for kind, driver in drivers().items() if kind == "host" or (installed and driver.count())]
    there = {column.kind for column in found}
    return [*found, *(_look(emulator(kind)) for kind in EMULATED if kind not in there)]


def meanings() -> Iterator[tuple[str, str, str]]:
    """Of each ability its name, whether it is a Queue's, a Port's or a Driver's, and a sentence."""
    for whose, abilities in BY_OWNER.items():
        for ability in abilities:
            words = " ".join((ability.__doc__ or "").split())
            yield ability.__name__, whose, f"{words.partition('. ')[0].removesuffix('.')}."


@cache
def verified_on() -> dict[str, tuple[str, ...]]:
    """Of each kind, the hardware on which its backend has passed the conformance suite. (backends/verified.toml)"""
    text = (resources.files(__package__) / "verified.toml").read_text()
    found: dict[str, tuple[str, ...]] = {}
    for run in tomllib.loads(text)["run"]:
        found[run["kind"]] = (*found.get(run["kind"], ()), f"{run['on']} ({run['when']})")
    return found


def markdown(table: list[Column]) -> str:
    """The table, for the page of the documentation."""
    rows = [["ability", "of", *(column.title for column in table)]]
    rows += [[f"`{name}`", whose, *_marks(name, table)] for name, whose, _ in meanings()]
    rows += [["**verified on**", "", *("; ".join(column.verified_on) or "no hardware" for column in table)]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def _marks(ability: str, table: list[Column]) -> list[str]:
    return ["yes" if ability in column.has else "no" for column in table]


def _look(driver: Driver) -> Column:
    def see(port: Port) -> Column:
        props = port.props
        things = {"Queue": port.queue(), "Port": port, "Driver": driver}
        has = {
            ability.__name__
            for whose, abilities in BY_OWNER.items()
            for ability in abilities
            if isinstance(things[whose], ability)
        }
        verified = () if props.emulated else verified_on().get(props.kind, ())
        return Column(props.kind, props.name, props.emulated, frozenset(has), verified)

    found, wrong = look(driver, 0, see)
    return found or Column(driver.kind, "", emulated=False, error=wrong)
