"""How backends are found: built in, brought by packages, registered for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from forebay import backends
from forebay.backends import driver, drivers, registered, why_not
from forebay.backends.host.driver import HostDriver
from forebay.errors import DeviceError, ForebayError, ForebayWarning
from forebay.testing.fake import FakeDriver


@pytest.fixture
def packaged(monkeypatch):
    """Pretends that packages bring these entry points."""

    def bring(**values: str):
        return bring_all(list(values.items()))

    def bring_all(pairs):
        found = [EntryPoint(name, value, backends.GROUP) for name, value in pairs]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == backends.GROUP else [])
        monkeypatch.setattr(backends, "_drivers", backends._Drivers())

    bring.all = bring_all
    return bring


def test_the_host_is_always_there():
    assert "host" in drivers()
    assert isinstance(driver("host"), HostDriver)
    assert driver("host") is driver("host")
    assert why_not("host") == ""


@pytest.mark.parametrize("kind", ["cuda", "mps", "mtia"])
def test_a_kind_without_a_backend_says_so(kind):
    sentence = f"his version of forebay has no backend for {kind}"
    assert sentence in why_not(kind)
    assert driver(kind).count() == 0
    assert kind not in drivers()
    with pytest.raises(DeviceError, match=sentence):
        driver(kind).open(0)


def test_an_unknown_kind_is_told_the_known_ones():
    with pytest.raises(ForebayError, match=r"'banana' is not a kind of device; installed are .*host"):
        driver("banana")
    assert "'banana' is not a kind" in why_not("banana")


def test_a_package_brings_a_kind(packaged):
    packaged(fake="forebay.testing.fake:FakeDriver")
    assert {*drivers()} == {"host", "fake"}
    assert len(drivers()) == 2
    assert isinstance(driver("fake"), FakeDriver)
    assert driver("fake") is drivers()["fake"]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("acme", "no_such_module:Driver", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("acme", "forebay.testing.fake:NoDriver", "AttributeError"),
        ("acme", "forebay.testing.fake:FakeDriver", "its kind is 'fake'"),
        ("acme", "builtins:object", "its driver has no kind, count, why_not, open"),
        ("acme:0", "forebay.testing.fake:FakeDriver", "ValueError"),
        ("Acme", "forebay.testing.fake:FakeDriver", "ValueError"),
    ],
)
def test_a_broken_package_breaks_nothing_else(packaged, kind, value, reason):
    packaged.all([(kind, value), ("fake", "forebay.testing.fake:FakeDriver")])
    assert f"the backend for {kind} could not be loaded" in why_not(kind)
    assert reason in why_not(kind)
    assert driver(kind).count() == 0
    with pytest.raises(DeviceError, match="could not be loaded"):
        driver(kind).open(0)
    assert [each.count() for each in drivers().values()] == [1, 0, 1]


def test_a_package_may_bring_a_kind_that_forebay_knows(packaged):
    packaged(mtia="forebay.testing.fake:FakeDriver")
    assert "its kind is 'fake'" in why_not("mtia")


def test_two_packages_with_one_kind(packaged):
    packaged.all([("fake", "forebay.testing.fake:FakeDriver"), ("fake", "other:Driver"), ("host", "other:Driver")])
    with pytest.warns(ForebayWarning) as caught:
        assert isinstance(driver("fake"), FakeDriver)
    assert len(caught) == 2
    assert "two backends bring kind 'fake': forebay.testing.fake:FakeDriver is used" in str(caught[0].message)
    assert isinstance(driver("host"), HostDriver)


@pytest.mark.filterwarnings("error")
def test_two_packages_with_one_kind_are_an_error_once(packaged):
    """Where warnings are errors; then the first has the kind."""
    packaged.all([("fake", "forebay.testing.fake:FakeDriver"), ("fake", "other:Driver")])
    with pytest.raises(ForebayWarning):
        driver("fake")
    assert isinstance(driver("fake"), FakeDriver)


def test_a_driver_is_registered_for_a_while():
    new = FakeDriver()
    other = FakeDriver()
    with registered(new):
        assert driver("fake") is drivers()["fake"] is new
        assert why_not("fake") == ""
        with registered(other):
            assert driver("fake") is other
        assert driver("fake") is new
    assert "fake" not in drivers()


def test_a_built_in_kind_comes_back():
    before = driver("host")
    with pytest.raises(ZeroDivisionError), registered(FakeDriver(kind="host")):
        1 / (driver("host") is before)
    assert driver("host") is before


def test_asking_imports_only_what_was_asked_for():
    code = """
import sys
import forebay.backends as backends
assert not {'forebay.backends.host.driver', 'importlib.metadata'} & {*sys.modules}
assert backends.why_not('cuda')
assert backends.drivers() is backends.drivers()
assert 'forebay.backends.host.driver' not in sys.modules
assert backends.driver('host').count()
assert 'forebay.backends.host.driver' in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
