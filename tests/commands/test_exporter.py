"""`forebay exporter` without its library or a usable directory, and its end by Ctrl-C."""

from __future__ import annotations

import signal
import socketserver
import sys
import urllib.request
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from forebay.commands import exporter
from forebay.commands.cli import main

LIMIT = 20.0  # seconds
needs_library = pytest.mark.skipif(not find_spec("prometheus_client"), reason="the extra exporter is not installed")


@pytest.fixture(autouse=True)
def _restored():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def open_directory(runtime_directory):
    """A directory of the sockets that others could access."""
    (runtime_directory / "forebay").mkdir(mode=0o755)
    return runtime_directory / "forebay"


@pytest.fixture
def scrape_until_interrupted(capsys, monkeypatch):
    """Run the exporter until Ctrl-C, after one scrape; return the status, the metrics and the outputs."""
    scraped = []

    class Interrupted:
        def set(self) -> None:
            raise AssertionError("there was no SIGTERM")

        def wait(self) -> None:
            address = capsys.readouterr().out.split()[2]
            with urllib.request.urlopen(address, timeout=LIMIT) as reply:
                scraped.append((address, reply.read().decode()))
            raise KeyboardInterrupt

    def run():
        monkeypatch.setattr(exporter, "threading", SimpleNamespace(Event=Interrupted))
        monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))  # seconds until it ends
        status = main(["exporter", "--port", "0"])
        ((address, metrics),) = scraped
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(address, timeout=LIMIT)
        return status, metrics, capsys.readouterr()

    return run


def test_missing_library_is_reported(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["exporter", "--once"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("forebay: error: forebay exporter cannot start: ")
    assert err.endswith(" (pip install 'forebay[exporter]')\n")


@needs_library
def test_interrupt_ends_the_server(runtime_directory, scrape_until_interrupted):
    status, metrics, (_, err) = scrape_until_interrupted()
    assert (status, err) == (0, "")
    assert "forebay_processes 0.0" in metrics


@needs_library
def test_unusable_directory_fails_a_single_read(capsys, open_directory):
    assert main(["exporter", "--once"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("forebay: error: cannot find running programs: ")
    assert f"{str(open_directory)!r} must have mode 0700" in err


@needs_library
def test_unusable_directory_is_reported_by_the_server_at_each_scrape(open_directory, scrape_until_interrupted):
    status, metrics, (_, err) = scrape_until_interrupted()
    assert status == 0
    assert "forebay_processes" not in metrics
    lines = err.splitlines()
    assert {line for line in lines if "must have mode 0700" in line} == {*lines}
    assert lines
