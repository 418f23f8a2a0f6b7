"""`forebay info --abilities`: the table of abilities and its JSON form."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from forebay.backends import ability_table, override_driver
from forebay.backends.plugins.contract_checks import wrap_with_checks
from forebay.commands import abilities
from forebay.commands.cli import main
from forebay.errors import DeviceError
from forebay.testing.fake import FakeDriver, FakePort


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_terminal(width):
    out = io.StringIO()
    abilities.draw(Console(file=out, width=width, highlight=False), ability_table.columns())
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    (timing,) = [line for line in lines if line.split()[:1] == ["Timing"]]
    assert timing.split()[1:6] == ["Queue", "yes", "yes", "yes", "yes"]
    assert ("description" in out.getvalue()) == (width == 120)


def test_abilities_are_printed_as_json(capsys):
    with override_driver(FakeDriver()):
        assert main(["info", "--abilities", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    kinds = {each["kind"]: each for each in output["kinds"]}
    assert {"cpu", "fake", "cuda", "mps", "mtia"} <= set(kinds)
    assert "SurvivesFork" in kinds["fake"]["abilities"]
    assert "Captures" not in kinds["fake"]["abilities"]
    assert kinds["fake"]["verified_on"] == []
    assert kinds["cpu"]["verified_on"]
    assert {each["of"] for each in output["abilities"]} == {"Queue", "Port", "Driver"}


def test_device_that_fails_to_open_is_reported(capsys):
    class Driver(FakeDriver):
        def open(self, index):
            raise DeviceError("hardware fault")

    with override_driver(Driver()):
        assert main(["info", "--abilities"]) == 0
    output = capsys.readouterr().out
    assert "fake  hardware fault" in output
    assert "Timing" in output


@pytest.mark.parametrize("arguments", [["info"], ["info", "--abilities"]], ids=" ".join)
def test_bug_in_plugin_is_reported_with_package_and_method(capsys, arguments):
    class Driver(FakeDriver):
        def open(self, index):
            return super().open(index + "")

    with override_driver(wrap_with_checks(Driver(), "acme")):
        assert main(arguments) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "TypeError: unsupported operand type(s) for +: 'int' and 'str'; raised in open() by acme" in output


@pytest.mark.parametrize("arguments", [["info"], ["info", "--abilities"]], ids=" ".join)
def test_device_that_fails_to_report_is_closed(capsys, arguments):
    driver = FakeDriver()

    class Broken(FakePort):
        def memory_info(self):
            raise DeviceError("no response")

        queue = memory_info

    def open_broken(index):
        port = FakeDriver.open(driver, index)
        port.__class__ = Broken
        return port

    driver.open = open_broken
    with override_driver(driver):
        assert main(arguments) == 0
    assert "no response" in capsys.readouterr().out
    assert ("close",) in driver.ports[0].calls


def test_opened_devices_are_closed():
    driver = FakeDriver()
    with override_driver(driver):
        ability_table.columns()
    (port,) = driver.ports
    assert ("close",) in port.calls
