"""Registry of backends: built in, from entry points, and temporary overrides."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from forebay import backends
from forebay.backends import driver, drivers, override_driver, why_not
from forebay.backends.host.driver import HostDriver
from forebay.errors import DeviceError, ForebayError, ForebayWarning
from forebay.testing.fake import FakeDriver


@pytest.fixture
def packaged(monkeypatch):
    """Replace the installed entry points."""

    def install(**values: str):
        return install_all(list(values.items()))

    def install_all(pairs):
        found = [EntryPoint(name, value, backends.GROUP) for name, value in pairs]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == backends.GROUP else [])
        monkeypatch.setattr(backends, "_drivers", backends._Drivers())

    install.all = install_all
    return install


def test_cpu_is_always_registered():
    assert "cpu" in drivers()
    assert isinstance(driver("cpu"), HostDriver)
    assert driver("cpu") is driver("cpu")
    assert why_not("cpu") == ""


@pytest.mark.parametrize("kind", ["mtia"])
def test_planned_kind_without_backend_reports_the_reason(kind):
    reason = f"his version of forebay has no backend for {kind}"
    assert reason in why_not(kind)
    assert driver(kind).count() == 0
    assert kind not in drivers()
    with pytest.raises(DeviceError, match=reason):
        driver(kind).open(0)


def test_unknown_kind_raises_with_installed_kinds():
    with pytest.raises(ForebayError, match=r"'banana' is not a kind of device; installed kinds: .*cpu"):
        driver("banana")
    assert "'banana' is not a kind" in why_not("banana")


def test_package_provides_a_kind(packaged):
    packaged(fake="forebay.testing.fake:FakeDriver")
    assert {*drivers()} == {"cpu", "cuda", "mps", "fake"}
    assert len(drivers()) == 4
    assert isinstance(driver("fake"), FakeDriver)
    assert driver("fake") is drivers()["fake"]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("acme", "no_such_module:Driver", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("acme", "forebay.testing.fake:NoDriver", "AttributeError"),
        ("acme", "forebay.testing.fake:FakeDriver", "its driver reports the kind 'fake'"),
        ("acme", "builtins:object", "its driver has no kind, count, why_not, open"),
        ("acme:0", "forebay.testing.fake:FakeDriver", "RuntimeError"),
        ("Acme", "forebay.testing.fake:FakeDriver", "reports the kind 'fake'"),
    ],
)
def test_broken_package_does_not_affect_other_kinds(packaged, kind, value, reason):
    packaged.all([(kind, value), ("fake", "forebay.testing.fake:FakeDriver")])
    assert f"the backend for {kind} could not be loaded" in why_not(kind)
    assert reason in why_not(kind)
    assert driver(kind).count() == 0
    with pytest.raises(DeviceError, match="could not be loaded"):
        driver(kind).open(0)
    built_in = ["cpu", "cuda", "mps"]
    assert [each.count() for name, each in drivers().items() if name not in built_in] == [0, 1]
    assert drivers()["cpu"].count() == 1


def test_package_may_provide_a_planned_kind(packaged):
    packaged(mtia="forebay.testing.fake:FakeDriver")
    assert "its driver reports the kind 'fake'" in why_not("mtia")


def test_second_package_for_a_kind_is_ignored_with_a_warning(packaged):
    packaged.all([("fake", "forebay.testing.fake:FakeDriver"), ("fake", "other:Driver"), ("cpu", "other:Driver")])
    with pytest.warns(ForebayWarning) as caught:
        assert isinstance(driver("fake"), FakeDriver)
    assert len(caught) == 2
    assert "two backends provide kind 'fake': forebay.testing.fake:FakeDriver is used" in str(caught[0].message)
    assert isinstance(driver("cpu"), HostDriver)


@pytest.mark.filterwarnings("error")
def test_conflict_raises_once_if_warnings_are_errors(packaged):
    """Later lookups return the first backend."""
    packaged.all([("fake", "forebay.testing.fake:FakeDriver"), ("fake", "other:Driver")])
    with pytest.raises(ForebayWarning):
        driver("fake")
    assert isinstance(driver("fake"), FakeDriver)


def test_registered_overrides_a_driver_inside_the_block():
    new = FakeDriver()
    other = FakeDriver()
    with override_driver(new):
        assert driver("fake") is drivers()["fake"] is new
        assert why_not("fake") == ""
        with override_driver(other):
            assert driver("fake") is other
        assert driver("fake") is new
    assert "fake" not in drivers()


def test_registered_restores_a_built_in_driver():
    before = driver("cpu")
    with pytest.raises(ZeroDivisionError), override_driver(FakeDriver(kind="cpu")):
        1 / (driver("cpu") is before)
    assert driver("cpu") is before


@pytest.mark.slow
def test_lookup_imports_only_the_requested_backend():
    code = """
import sys
import forebay.backends as backends
assert not {'forebay.backends.host.driver', 'importlib.metadata'} & {*sys.modules}
assert backends.why_not('cuda')
assert backends.drivers() is backends.drivers()
assert 'forebay.backends.host.driver' not in sys.modules
assert backends.driver('cpu').count()
assert 'forebay.backends.host.driver' in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
