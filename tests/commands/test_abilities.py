"""`forebay info --abilities`: which kind of device does what."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from forebay.backends import ability_table, registered
from forebay.backends.plugins.contract_checks import watch
from forebay.cli import main
from forebay.commands import abilities
from forebay.errors import DeviceError
from forebay.testing.fake import FakeDriver, FakePort


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width):
    out = io.StringIO()
    abilities.draw(Console(file=out, width=width, highlight=False), ability_table.columns())
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    (timing,) = [line for line in lines if line.split()[:1] == ["Timing"]]
    assert timing.split()[1:6] == ["Queue", "yes", "yes", "yes", "yes"]
    assert ("that knows when" in timing) == (width == 120)


def test_the_same_as_json(capsys):
    with registered(FakeDriver()):
        assert main(["info", "--abilities", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    kinds = {each["kind"]: each for each in said["kinds"]}
    assert {"host", "fake", "cuda", "mps", "mtia"} <= set(kinds)
    assert "Reopens" in kinds["fake"]["abilities"]
    assert "Captures" not in kinds["fake"]["abilities"]
    assert kinds["fake"]["verified_on"] == []
    assert kinds["host"]["verified_on"]
    assert {each["of"] for each in said["abilities"]} == {"Queue", "Port", "Driver"}


def test_a_device_that_cannot_be_opened_is_named(capsys):
    class Driver(FakeDriver):
        def open(self, index):
            raise DeviceError("it is on fire")

    with registered(Driver()):
        assert main(["info", "--abilities"]) == 0
    said = capsys.readouterr().out
    assert "fake  it is on fire" in said
    assert "Timing" in said


@pytest.mark.parametrize("arguments", [["info"], ["info", "--abilities"]], ids=" ".join)
def test_a_mistake_of_a_packages_backend_is_named_with_its_place(capsys, arguments):
    class Driver(FakeDriver):
        def open(self, index):
            return super().open(index + "")

    with registered(watch(Driver(), "acme")):
        assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "TypeError: unsupported operand type(s) for +: 'int' and 'str'; raised in open() by acme" in said


@pytest.mark.parametrize("arguments", [["info"], ["info", "--abilities"]], ids=" ".join)
def test_one_that_fails_when_it_is_looked_at_is_closed(capsys, arguments):
    driver = FakeDriver()

    class Broken(FakePort):
        def memory_info(self):
            raise DeviceError("no answer")

        queue = memory_info

    def open_broken(index):
        port = FakeDriver.open(driver, index)
        port.__class__ = Broken
        return port

    driver.open = open_broken
    with registered(driver):
        assert main(arguments) == 0
    assert "no answer" in capsys.readouterr().out
    assert ("close",) in driver.ports[0].calls


def test_what_was_opened_is_closed():
    driver = FakeDriver()
    with registered(driver):
        ability_table.columns()
    (port,) = driver.ports
    assert ("close",) in port.calls
