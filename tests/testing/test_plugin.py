"""Tests of the conformance suite on a vendor's package: an entry point and a test file of two lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

TEST_FILE = """\
from forebay.testing.conformance import *
pytest_plugins = ["forebay.testing.plugin"]
"""

WITHOUT_ABILITIES = """\
from forebay.backends.host.driver import HostPort
from forebay.spi import DeviceProps

QUEUE = ("copy", "fill", "signal", "reached", "idle", "wait", "close")
PORT = ("reserve", "release", "memory_info", "close")

class AcmeQueue:
    def __init__(self, inner):
        self.inner, self.handle = inner, inner.handle
        for name in QUEUE:
            setattr(self, name, getattr(inner, name))
    def wait_for(self, other, tick):
        self.inner.wait_for(other.inner, tick)

class AcmePort:
    def __init__(self, index):
        self.props = DeviceProps("acme", index, "Acme One", 1 << 30)
        self.inner = HostPort(self.props)
        for name in PORT:
            setattr(self, name, getattr(self.inner, name))
    def queue(self, priority=0):
        return AcmeQueue(self.inner.queue(priority))

class AcmeDriver:
    kind = "acme"
    def count(self):
        return 2
    def why_not(self):
        return ""
    def open(self, index):
        from forebay.errors import DeviceError
        if index not in (0, 1):
            raise DeviceError("there is no such device")
        return AcmePort(index)
"""

WITHOUT_DEVICES = """\
from forebay.testing.fake import FakeDriver

class AcmeDriver(FakeDriver):
    def __init__(self):
        super().__init__(count=0, kind="acme")
    def why_not(self):
        return "libacme.so was not found"
"""

INCORRECT = """\
from forebay.testing.fake import FakeDriver

class AcmeDriver(FakeDriver):
    def __init__(self):
        super().__init__(kind="acme")
    def open(self, index):
        port = super().open(index)
        port.release = lambda address: None
        return port
"""


@pytest.fixture
def vendor(tmp_path):
    """Return a function that installs a package with a module, runs its tests and returns status and output."""

    def run(module: str, *arguments: str, kind: str = "acme") -> tuple[int, str]:
        (tmp_path / "acme.py").write_text(module)
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[forebay.backends]\n{kind} = acme:AcmeDriver\n")
        (tmp_path / "test_acme.py").write_text(TEST_FILE)
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        command = [sys.executable, "-m", "pytest", "-rsf", "-W", "error", "--strict-markers", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-q", *arguments, "test_acme.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_backend_without_abilities_skips_ability_tests(vendor):
    status, output = vendor(WITHOUT_ABILITIES, "-k", "acme:")
    assert status == 0, output
    assert "failed" not in output
    for ability in ("Launches", "Timing", "PinnedHost", "Resizable", "SurvivesFork"):
        assert f"acme lacks the ability {ability}" in output


def test_every_device_of_every_kind_is_tested(vendor):
    status, output = vendor(WITHOUT_ABILITIES, "--collect-only")
    assert status == 0, output
    for device in ("acme:0", "acme:1", "cpu:0", "fake:0"):
        assert f"test_queue_waits_for_another_queue[{device}]" in output


def test_backend_without_devices_is_skipped_with_reason(vendor):
    status, output = vendor(WITHOUT_DEVICES, "-k", "acme:")
    assert status == 0, output
    assert "passed" not in output
    assert "libacme.so was not found" in output


def test_unimportable_backend_is_skipped_with_reason(vendor):
    status, output = vendor("import libacme", "-k", "acme:")
    assert status == 0, output
    assert "the backend for acme could not be loaded: ModuleNotFoundError: No module named 'libacme'" in output


@pytest.mark.parametrize("kind", ["mtia"])  # of the kinds that can be emulated, the one without a backend here
def test_emulated_device_does_not_replace_missing_backend(vendor, kind):
    status, output = vendor("import libacme", "-k", f"{kind}:", kind=kind)
    assert status == 0, output
    assert "passed" not in output
    assert f"the backend for {kind} could not be loaded" in output


def test_backend_that_violates_the_contract_fails(vendor):
    status, output = vendor(INCORRECT, "-k", "acme:")
    assert status == 1, output
    assert "FAILED test_acme.py::test_release_restores_free_memory[acme:0]" in output, output
    assert "assert (" in output  # assertions of the suite are rewritten by pytest
