"""The README lists the rules, the machines and what steers them."""

from __future__ import annotations

from softmetal.control import control
from softmetal.machines import MACHINES
from softmetal.rules import RULES
from softmetal.write_readme import README, with_table

TEXT = README.read_text()


def test_rules_are_listed():
    assert with_table(TEXT, RULES) == TEXT, "run tests/softmetal/write_readme.py"


def test_machines_are_listed():
    assert [name for name in MACHINES if f"`{name}`" not in TEXT and f'"{name}"' not in TEXT] == []


def test_methods_that_steer_are_listed():
    named = (
        "use",
        "hold",
        "step",
        "release",
        "held",
        "fail",
        "fail_command_buffer",
        "interrupt",
        "live",
        "calls",
        "check",
    )
    assert [name for name in named if f"{name}(" not in TEXT] == []
    assert all(callable(getattr(control, name)) for name in named)
