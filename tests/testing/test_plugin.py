"""A vendor's package, as a vendor would write it: an entry point, and a test file of three lines."""

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

BARE = """\
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

NONE = """\
from forebay.testing.fake import FakeDriver

class AcmeDriver(FakeDriver):
    def __init__(self):
        super().__init__(count=0, kind="acme")
    def why_not(self):
        return "libacme.so was not found"
"""

WRONG = """\
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
    """Installs a package with this module in a folder of its own, runs its tests, and gives what pytest said."""

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


def test_a_backend_without_abilities_is_asked_for_none(vendor):
    code, said = vendor(BARE, "-k", "acme:")
    assert code == 0, said
    assert "failed" not in said
    for ability in ("Launches", "Timing", "PinnedHost", "Resizable", "Reopens"):
        assert f"acme lacks the ability {ability}" in said


def test_every_device_of_every_kind_is_tested(vendor):
    code, said = vendor(BARE, "--collect-only")
    assert code == 0, said
    for device in ("acme:0", "acme:1", "host:0", "fake:0"):
        assert f"test_a_queue_waits_for_another[{device}]" in said


def test_a_backend_without_devices_is_skipped_with_its_reason(vendor):
    code, said = vendor(NONE, "-k", "acme:")
    assert code == 0, said
    assert "passed" not in said
    assert "libacme.so was not found" in said


def test_a_backend_that_cannot_be_imported_is_skipped_with_its_reason(vendor):
    code, said = vendor("import libacme", "-k", "acme:")
    assert code == 0, said
    assert "the backend for acme could not be loaded: ModuleNotFoundError: No module named 'libacme'" in said


@pytest.mark.parametrize("kind", ["cuda", "mps", "mtia"])
def test_no_emulated_device_passes_for_a_backend_that_is_not_there(vendor, kind):
    code, said = vendor("import libacme", "-k", f"{kind}:", kind=kind)
    assert code == 0, said
    assert "passed" not in said
    assert f"the backend for {kind} could not be loaded" in said


def test_a_backend_that_breaks_the_contract_is_found(vendor):
    code, said = vendor(WRONG, "-k", "acme:")
    assert code == 1, said
    assert "FAILED test_acme.py::test_released_memory_is_free_again[acme:0]" in said, said
    assert "assert (" in said  # pytest explains the suite's assertions
