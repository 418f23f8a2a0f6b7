"""The table of abilities has all of them, says of no hardware what was not seen there, and is the one in the docs."""

from __future__ import annotations

import datetime as dt
import inspect
import tomllib

import pytest

from forebay import backends, spi
from forebay.backends import EMULATED, ability_table
from forebay.backends.common.abilities import BY_OWNER

WHOSE = {ability: whose for whose, abilities in BY_OWNER.items() for ability in abilities}
ALL = tuple(WHOSE)


def meanings() -> str:
    """For the page: a list of definitions."""
    return "\n\n".join(f"`{name}`\n: {meaning}" for name, _, meaning in ability_table.meanings())


def test_every_ability_of_the_contract_is_in_the_table():
    protocols = [
        thing
        for name, thing in vars(spi).items()
        if name in spi.__all__ and inspect.isclass(thing) and getattr(thing, "_is_runtime_protocol", False)
    ]
    assert set(protocols) == set(ALL)


@pytest.mark.parametrize("ability", ALL, ids=lambda ability: ability.__name__)
def test_an_ability_says_whose_it_is(ability):
    assert ability.__doc__.startswith(f"A {WHOSE[ability]}")


def test_the_page_of_the_documentation_has_this_table(root):
    page = (root / "docs/reference/abilities.md").read_text()
    assert ability_table.markdown(ability_table.columns(installed=False)) in page
    assert meanings() in page


def test_hardware_is_verified_by_those_who_ran_on_it(root):
    runs = tomllib.loads((root / "src/forebay/backends/verified.toml").read_text())["run"]
    for run in runs:
        assert set(run) == {"kind", "on", "when", "how"}
        assert isinstance(run["when"], dt.date)
        assert run["kind"] in backends._BUILT_IN, "there is no backend that could have run there"


@pytest.mark.parametrize("kind", EMULATED)
def test_an_emulated_device_is_verified_on_no_hardware(kind):
    (column,) = [column for column in ability_table.columns(installed=False) if column.kind == kind]
    assert column.emulated
    assert column.verified_on == ()
