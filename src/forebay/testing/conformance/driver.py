"""Tests of Driver: properties of the kind, and opening devices."""

from __future__ import annotations

import pytest

from forebay import spi
from forebay._base.device_spec import Device
from forebay.backends import override_driver
from forebay.errors import DeviceError
from forebay.spi import Describes, Driver, Port

__all__ = [
    "test_describe_matches_the_opened_device",
    "test_driver_with_devices_has_empty_why_not",
    "test_opening_a_missing_device_raises",
    "test_props_describe_the_opened_device",
    "test_required_members_exist",
]


def test_required_members_exist(driver: Driver, port: Port) -> None:
    implementations = {spi.Driver: driver, spi.Port: port, spi.Queue: port.queue()}
    required = [
        (part, name)
        for contract, part in implementations.items()
        for name in vars(contract)
        if not name.startswith("_")
    ]
    assert [f"{type(part).__name__}.{name}" for part, name in required if not hasattr(part, name)] == []


def test_driver_with_devices_has_empty_why_not(driver: Driver, port: Port) -> None:
    assert driver.count() > port.props.index
    assert driver.why_not() == ""


def test_props_describe_the_opened_device(driver: Driver, port: Port) -> None:
    props = port.props
    assert props.kind == driver.kind
    with override_driver(driver):
        assert str(Device(props.kind, props.index)) == f"{props.kind}:{props.index}"
    assert props.name
    assert port.memory_info()[1] == props.total_bytes > 0


def test_describe_matches_the_opened_device(driver: Driver, port: Port) -> None:
    if not isinstance(driver, Describes):
        pytest.skip(f"{driver.kind} lacks the ability Describes")
    described = driver.describe(port.props.index)
    assert (described.kind, described.index, described.name) == (port.props.kind, port.props.index, port.props.name)
    assert (described.total_bytes, described.emulated, described.heaps) == (
        port.props.total_bytes,
        port.props.emulated,
        port.props.heaps,
    )


def test_opening_a_missing_device_raises(driver: Driver, port: Port) -> None:
    del port  # opened to show that the driver works
    for index in (driver.count(), -1):
        with pytest.raises(DeviceError):
            driver.open(index)
