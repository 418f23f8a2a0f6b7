"""Memory of emulated devices that is in use from the start, as by the context of a real one."""

from __future__ import annotations

import pytest

import forebay
from forebay import backends
from forebay._base.config import Emulated, parse_emulated

MIB = 1 << 20


@pytest.mark.usefixtures("clean")
def test_reserved_memory_cannot_be_allocated():
    with forebay.emulate("cuda", memory="64MiB", reserve="20MiB"):
        assert forebay.cuda.mem_get_info() == (44 * MIB, 64 * MIB)
        held = forebay.empty(40 * MIB, dtype=forebay.uint8, device="cuda")
        with pytest.raises(forebay.OutOfMemoryError, match=r"total capacity of 64.00 MiB of which 4.00 MiB is free"):
            forebay.empty(5 * MIB, dtype=forebay.uint8, device="cuda")
        assert forebay.cuda.mem_get_info()[0] == 4 * MIB
        assert backends.driver("cuda").sensors(0).memory() == (60 * MIB, 64 * MIB)
        del held


@pytest.mark.parametrize(
    ("reserve", "words"),
    [
        ("64MiB", r"64.00 MiB of 64.00 MiB cannot be reserved: nothing is left"),
        (-1, "reserve must be a number of bytes"),
        (True, "reserve must be a number of bytes"),
        (1.5, "reserve must be a number of bytes"),
        ("much", "much"),
    ],
)
def test_emulate_rejects_invalid_reserve(reserve, words):
    with pytest.raises(ValueError, match=words):
        forebay.emulate("cuda", memory="64MiB", reserve=reserve)


def test_environment_variable_has_the_reserved_memory():
    written = Emulated("cuda", 2, "h200", guard=True, memory=64 * MIB, reserve=MIB)
    assert parse_emulated(str(written)) == (written,)
    assert parse_emulated("t4") == (Emulated("cuda", profile="t4"),)
    assert parse_emulated("rtx_4090+memory=1MiB") == (Emulated("cuda", profile="rtx_4090", memory=MIB),)
    assert parse_emulated("cuda@h200+reserve=1MiB") == (Emulated("cuda", profile="h200", reserve=MIB),)
