"""Driver: what a kind says about itself, and opening its devices."""

from __future__ import annotations

import pytest

from forebay import spi
from forebay.device_spec import Device
from forebay.errors import DeviceError
from forebay.spi import Describes, Driver, Port

__all__ = [
    "test_a_device_that_is_not_there_cannot_be_opened",
    "test_a_driver_with_devices_has_no_excuse",
    "test_nothing_of_the_contract_is_missing",
    "test_properties_describe_the_device_that_was_opened",
    "test_what_is_said_before_holds_when_it_is_open",
]


def test_nothing_of_the_contract_is_missing(driver: Driver, port: Port) -> None:
    parts = {spi.Driver: driver, spi.Port: port, spi.Queue: port.queue()}
    wanted = [(part, name) for contract, part in parts.items() for name in vars(contract) if not name.startswith("_")]
    assert [f"{type(part).__name__}.{name}" for part, name in wanted if not hasattr(part, name)] == []


def test_a_driver_with_devices_has_no_excuse(driver: Driver, port: Port) -> None:
    assert driver.count() > port.props.index
    assert driver.why_not() == ""


def test_properties_describe_the_device_that_was_opened(driver: Driver, port: Port) -> None:
    props = port.props
    assert props.kind == driver.kind
    assert str(Device(props.kind, props.index)) == f"{props.kind}:{props.index}"
    assert props.name
    assert port.memory_info()[1] == props.total_bytes > 0


def test_what_is_said_before_holds_when_it_is_open(driver: Driver, port: Port) -> None:
    if not isinstance(driver, Describes):
        pytest.skip(f"{driver.kind} lacks the ability Describes")
    said = driver.describe(port.props.index)
    assert (said.kind, said.index, said.name) == (port.props.kind, port.props.index, port.props.name)
    assert (said.total_bytes, said.emulated, said.heaps) == (
        port.props.total_bytes,
        port.props.emulated,
        port.props.heaps,
    )


def test_a_device_that_is_not_there_cannot_be_opened(driver: Driver, port: Port) -> None:
    del port  # there is one, so the driver works
    for index in (driver.count(), -1):
        with pytest.raises(DeviceError):
            driver.open(index)
