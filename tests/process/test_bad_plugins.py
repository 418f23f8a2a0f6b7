"""Packages whose backend cannot be imported, ends the program, hangs, or is one of two: programs and commands go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

LIMIT = 60  # seconds for a child
GOOD = """
    from forebay.testing.fake import FakeDriver, FakePort, FakeQueue
    class Driver(FakeDriver):
        def __init__(self):
            super().__init__(1, kind="mtia")
"""


@pytest.fixture
def installed(tmp_path):
    """Puts a package with this module where Python finds it; gives what runs programs there."""

    def install(source: str, package: str = "acme", kind: str = "mtia") -> None:
        lines = [line[4:] for line in source.split("\n")]
        (tmp_path / f"{package}.py").write_text("\n".join(lines))
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[forebay.backends]\n{kind} = {package}:Driver\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "COLUMNS": "500"},
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip

    install.run = run
    return install


BY = "(acme:Driver of acme 1.0)"
BROKEN = {
    "a missing dependency": ("    import libacme", "ModuleNotFoundError: No module named 'libacme'"),
    "an error at import": ("    1 / 0", "ZeroDivisionError: division by zero"),
    "the program's end at import": ("    raise SystemExit('no card')", "SystemExit: no card"),
    "an error in the constructor": (
        "    class Driver:\n        def __init__(self):\n            raise OSError(19, 'No such device')",
        "OSError: [Errno 19] No such device",
    ),
    "another kind": (
        "    from forebay.testing.fake import FakeDriver as Driver",
        "its driver says that its kind is 'fake'",
    ),
    "no driver": ("    Driver = object", "its driver has no kind, count, why_not, open"),
    "half a driver": (
        "    class Driver:\n        kind = 'mtia'\n        def open(self, index): pass",
        "its driver has no count, why_not",
    ),
}


@pytest.mark.parametrize(("source", "says"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_loaded_says_why_and_stops_nobody(installed, source, says):
    installed(source)
    done = installed.run(
        "-W", "error", "-c", "import forebay, forebay.backends as b; print(b.why_not('mtia')); "
        "print(forebay.device_count('mtia'), forebay.zeros(2, device='host:0').tolist())",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    reason, rest = done.stdout.splitlines()
    assert reason == f"the backend for mtia could not be loaded: {says} {BY}"
    assert rest == "0 [0.0, 0.0]"
    told = installed.run("-m", "forebay", "info", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["missing"]["mtia"] == reason


def test_the_doctor_is_well_beside_one_that_cannot_be_loaded(installed):
    installed(BROKEN["a missing dependency"][0])
    done = installed.run("-m", "forebay", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_device_that_breaks_the_contract_is_shown_with_what_is_wrong(installed):
    installed(
        GOOD
        + """
        def open(self, index):
            port = super().open(index)
            port.__class__ = Port
            return port
    class Port(FakePort):
        def memory_info(self):
            return 7, 3
    """
    )
    done = installed.run("-m", "forebay", "info")
    assert (done.returncode, done.stderr) == (0, "")
    words = "the backend for mtia (acme:Driver of acme 1.0) broke its contract: memory_info() gave (7, 3), which is not"
    assert words in done.stdout
    assert "host:0" in done.stdout


HANGS = """
        def open(self, index):
            port = super().open(index)
            port.__class__ = Port
            return port
    import threading
    class Port(FakePort):
        def queue(self, priority=0):
            queue = super().queue(priority)
            queue.__class__ = Queue
            return queue
        def close(self):
            threading.Event().wait()
    class Queue(FakeQueue):
        def close(self, timeout=None):
            threading.Event().wait()
    """


def test_one_that_hangs_in_close_holds_up_the_exit_no_longer_than_it_may(installed):
    installed(GOOD + HANGS)
    start = time.monotonic()
    done = installed.run(
        "-c", "import forebay; from forebay.runtime.lifecycle import exit_and_fork; exit_and_fork.EXIT_SECONDS = 0.2; "
        "forebay.Stream('mtia:0').record_event(); print(forebay.zeros(2, device='host:0').tolist())",
    )  # fmt: skip
    assert time.monotonic() - start < LIMIT / 2
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0]\n")
    assert "acme:Driver of acme 1.0) broke its contract: close(0.2) of queue 0 does not come back" in done.stderr
    assert "work of 2 queues was not done" in done.stderr


def test_one_that_raises_in_close_is_told_at_exit(installed):
    installed(GOOD + HANGS.replace("threading.Event().wait()", "raise KeyError('gone')"))
    done = installed.run("-c", "import forebay; forebay.Stream('mtia:0').record_event(); print('well')")
    assert (done.returncode, done.stdout) == (0, "well\n")
    words = "the backend for mtia (acme:Driver of acme 1.0) broke its contract: close() raised KeyError: 'gone'"
    assert words in done.stderr


def test_a_device_that_hangs_in_close_is_shown(installed):
    installed(GOOD + HANGS)
    done = installed.run(
        "-c", "import sys; from forebay.backends.plugins import probe; probe._SECONDS = 0.2; from forebay import cli; "
        "sys.exit(cli.main(['info']))",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "closing it takes longer than 0.2 s" in done.stdout


def test_of_two_packages_for_one_kind_one_is_used_and_both_are_named(installed):
    for package in ("acme", "bolt"):
        installed(GOOD, package)
    done = installed.run("-c", "import forebay; print(forebay.device_count('mtia'), forebay.device_count('host'))")
    assert (done.returncode, done.stdout) == (0, "1 1\n")
    (warning,) = [line for line in done.stderr.splitlines() if "ForebayWarning" in line]
    used, not_used = sorted(["acme:Driver of acme 1.0", "bolt:Driver of bolt 1.0"], key=warning.index)
    assert f"two backends bring kind 'mtia': {used} is used, {not_used} not" in warning
    assert forebay_info(installed)["devices"][-1]["kind"] == "mtia"


def forebay_info(installed) -> dict:
    done = installed.run("-m", "forebay", "info", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_package_found_twice_is_one(installed, tmp_path):
    """The same folder on the path twice, and its module imported by the program as well."""
    installed(GOOD)
    done = installed.run(
        "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import acme, forebay; "
        "acme.Driver(); import importlib; importlib.reload(acme); forebay.Stream('mtia:0').synchronize(); "
        "print(forebay.device_count('mtia'))",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
