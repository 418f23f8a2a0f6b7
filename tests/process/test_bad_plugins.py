"""Packages whose backend fails to load, hangs or conflicts with another do not break programs and commands."""

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
    """Return a function that installs a package with a module, and has a function `run` to run programs."""

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


ORIGIN = "(acme:Driver of acme 1.0)"
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
        "its driver reports the kind 'fake'",
    ),
    "no driver": ("    Driver = object", "its driver has no kind, count, why_not, open"),
    "half a driver": (
        "    class Driver:\n        kind = 'mtia'\n        def open(self, index): pass",
        "its driver has no count, why_not",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN)
def test_backend_that_cannot_be_loaded_reports_the_reason(installed, source, reason):
    installed(source)
    done = installed.run(
        "-W", "error", "-c", "import forebay, forebay.backends as b; print(b.why_not('mtia')); "
        "print(forebay.device_count('mtia'), forebay.zeros(2, device='cpu').tolist())",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    message, rest = done.stdout.splitlines()
    assert message == f"the backend for mtia could not be loaded: {reason} {ORIGIN}"
    assert rest == "0 [0.0, 0.0]"
    assert forebay_info(installed)["missing"]["mtia"] == message


def test_doctor_succeeds_despite_a_broken_backend(installed):
    installed(BROKEN["a missing dependency"][0])
    done = installed.run("-m", "forebay", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_info_shows_contract_violation(installed):
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
    error = f"the backend for mtia {ORIGIN} broke its contract: memory_info() returned (7, 3), which is not"
    assert error in done.stdout
    assert "cpu" in done.stdout


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


def test_hanging_close_does_not_delay_the_exit(installed):
    installed(GOOD + HANGS)
    start = time.monotonic()
    done = installed.run(
        "-c", "import forebay; from forebay.runtime.lifecycle import exit_and_fork; exit_and_fork.EXIT_SECONDS = 0.2; "
        "forebay.Stream('mtia:0').record_event(); print(forebay.zeros(2, device='cpu').tolist())",
    )  # fmt: skip
    assert time.monotonic() - start < LIMIT / 2
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0]\n")
    assert "acme:Driver of acme 1.0) broke its contract: close(0.2) of queue 0 did not return" in done.stderr
    assert "work of 2 queues was not done" in done.stderr


def test_exception_in_close_is_reported_at_exit(installed):
    installed(GOOD + HANGS.replace("threading.Event().wait()", "raise KeyError('gone')"))
    done = installed.run("-c", "import forebay; forebay.Stream('mtia:0').record_event(); print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    error = f"the backend for mtia {ORIGIN} broke its contract: close() raised KeyError: 'gone'"
    assert error in done.stderr


def test_info_shows_hanging_close(installed):
    installed(GOOD + HANGS)
    done = installed.run(
        "-c", "import sys; from forebay.backends.plugins import probe; probe._CLOSE_SECONDS = 0.2; "
        "from forebay.commands import cli; sys.exit(cli.main(['info']))",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "closing the device takes longer than 0.2 s" in done.stdout


def test_conflicting_packages_are_named_in_a_warning(installed):
    for package in ("acme", "bolt"):
        installed(GOOD, package)
    done = installed.run("-c", "import forebay; print(forebay.device_count('mtia'), forebay.device_count('cpu'))")
    assert (done.returncode, done.stdout) == (0, "1 1\n")
    (warning,) = [line for line in done.stderr.splitlines() if "ForebayWarning" in line]
    used, ignored = sorted(["acme:Driver of acme 1.0", "bolt:Driver of bolt 1.0"], key=warning.index)
    assert f"two backends provide kind 'mtia': {used} is used, {ignored} is ignored" in warning
    assert forebay_info(installed)["devices"][-1]["kind"] == "mtia"


def forebay_info(installed) -> dict:
    done = installed.run("-m", "forebay", "info", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_package_found_twice_is_used_once(installed, tmp_path):
    """The folder is on the path twice, and the program imports the module, too."""
    installed(GOOD)
    done = installed.run(
        "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import acme, forebay; "
        "acme.Driver(); import importlib; importlib.reload(acme); forebay.Stream('mtia:0').synchronize(); "
        "print(forebay.device_count('mtia'))",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
