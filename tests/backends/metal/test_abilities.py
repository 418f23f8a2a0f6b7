"""The page of abilities names those that a Metal device lacks; texts claim only hardware that was verified."""

from __future__ import annotations

import re

from forebay.backends import ability_table
from forebay.backends.common.abilities import BY_OWNER
from forebay.backends.metal.driver import MetalDriver


def test_page_names_the_abilities_that_a_metal_device_lacks(root, port):
    queue, driver = port.queue(), MetalDriver()
    missing = {
        ability.__name__
        for abilities in BY_OWNER.values()
        for ability in abilities
        if not any(isinstance(each, ability) for each in (driver, port, queue))
    }
    page = (root / "docs/reference/abilities.md").read_text()
    (sentence,) = re.findall(r"A Metal device has all abilities of the table but ([^.]+)\.", page)
    assert {*re.findall(r"`(\w+)`", sentence)} == missing


def test_texts_claim_hardware_if_and_only_if_a_run_has_verified_it(root):
    """`dev.py mac --accept` adds the run; these texts must change with it."""
    verified = "mps" in ability_table.verified_on()
    for page, text in {
        "docs/how-to/metal.md": "**The backend is not verified on hardware:**",
        "docs/reference/abilities.md": "the one for [Apple's](../how-to/metal.md) on a stand-in for Metal only",
        "src/forebay/backends/metal/__init__.py": "It has not run on hardware yet",
    }.items():
        assert (text in " ".join((root / page).read_text().split())) is not verified, page
