"""The table of abilities is complete, claims only hardware on which abilities were verified, and equals the docs'."""

from __future__ import annotations

import datetime as dt
import inspect
import tomllib

import pytest

from forebay import backends, spi
from forebay.backends import EMULATED, ability_table
from forebay.backends.common.abilities import BY_OWNER

OWNERS = {ability: owner for owner, abilities in BY_OWNER.items() for ability in abilities}
ABILITIES = tuple(OWNERS)


def definition_list() -> str:
    """Return the definitions as the documentation page lists them."""
    return "\n\n".join(f"`{name}`\n: {meaning}" for name, _, meaning in ability_table.ability_summaries())


def test_table_has_every_ability_of_the_contract():
    protocols = [
        member
        for name, member in vars(spi).items()
        if name in spi.__all__ and inspect.isclass(member) and getattr(member, "_is_runtime_protocol", False)
    ]
    assert set(protocols) == set(ABILITIES)


@pytest.mark.parametrize("ability", ABILITIES, ids=lambda ability: ability.__name__)
def test_ability_docstring_names_its_owner(ability):
    assert ability.__doc__.startswith(f"A {OWNERS[ability]}")


def test_documentation_page_has_this_table(root):
    page = (root / "docs/reference/abilities.md").read_text()
    assert ability_table.markdown(ability_table.columns(installed=False)) in page
    assert definition_list() in page


def test_verified_runs_have_a_backend(root):
    runs = tomllib.loads((root / "src/forebay/backends/verified.toml").read_text())["run"]
    for run in runs:
        assert set(run) == {"kind", "on", "when", "how"}
        assert isinstance(run["when"], dt.date)
        assert run["kind"] in backends._BUILT_IN, "no backend could have run on this kind"


@pytest.mark.parametrize("kind", EMULATED)
def test_emulated_devices_claim_no_hardware(kind):
    (column,) = [column for column in ability_table.columns(installed=False) if column.kind == kind]
    assert column.emulated
    assert column.verified_on == ()
