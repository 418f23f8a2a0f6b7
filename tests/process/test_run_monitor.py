"""`forebay top` and `forebay exporter` beside a program under `forebay run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from .conftest import COMMAND, LIMIT

PROGRAM = """
    import os, sys, time
    import numpy as np
    import forebay
    def layer():
        return np.ones(1 << 20)
    kept = [layer() for _ in range(4)]
    tensor = forebay.empty(1000, device="cuda")
    child = 0
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            own = np.ones(1 << 20)
            print("ready", os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()
    if child:
        os.kill(child, 9)
        os.waitpid(child, 0)
"""


@contextmanager
def running(runner, *arguments: str, options: tuple[str, ...] = ()):
    """Run the program until the block ends; yield the process and the ids that it printed."""
    runner.write(PROGRAM)
    command = [COMMAND, "run", "--quiet", "--emulate", "cuda:1@h200", "--compute", *options, "script.py", *arguments]
    process = subprocess.Popen(
        command, cwd=runner.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, [int(process.stdout.readline().split()[1]) for _ in range(1 + len(arguments))]
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_top_shows_the_devices_of_a_running_program(runner, runtime_directory):
    with running(runner) as (process, [pid]):
        (found,) = json.loads(runner.command(COMMAND, "top", "--json").out)["processes"]
        assert found["pid"] == pid == process.pid
        assert found["program"].endswith("script.py")
        devices = {each["device"]: each for each in found["devices"]}
        assert devices.keys() == {"cpu", "cuda:0"}
        site = devices["cpu"]["sites"][0]
        assert (site["nbytes"], site["count"]) == (32 << 20, 4)
        assert site["label"].endswith("script.py:6 layer")
        table = runner.command(COMMAND, "top", "--once", "--pid", str(pid), env={**os.environ, "COLUMNS": "160"}).out
        assert "NVIDIA H200 (emulated)" in table
        assert "script.py:6 layer" in table
    assert [*(runtime_directory / "forebay").iterdir()] == []
    assert "offers no figures" in runner.command(COMMAND, "top", "--once", "--pid", str(pid)).err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_child_offers_its_own_figures(runner, runtime_directory):
    with running(runner, "fork") as (_, pids):
        found = json.loads(runner.command(COMMAND, "top", "--json").out)["processes"]
        assert {each["pid"] for each in found} == {*pids}
    assert json.loads(runner.command(COMMAND, "top", "--json").out)["processes"] == []


def test_monitor_can_be_turned_off(runner, runtime_directory):
    with running(runner, options=("--no-monitor",)):
        assert json.loads(runner.command(COMMAND, "top", "--json").out)["processes"] == []


def test_program_runs_without_sockets(runner, monkeypatch, runtime_directory):
    (runtime_directory / "forebay").touch()
    done = runner.forebay("print('ran')")
    assert (done.status, done.out) == (0, "ran\n")
    assert "forebay top cannot read this program" in done.err.splitlines()[0]


def test_exporter_serves_the_figures(runner, runtime_directory):
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra exporter is not installed")
    command = [sys.executable, "-m", "forebay", "exporter", "--port", "0"]
    with (
        running(runner),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as exporter,
    ):
        try:
            address = exporter.stdout.readline().split()[2]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=LIMIT) as reply:
                text = reply.read().decode()
        finally:
            exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(LIMIT) == 0
        assert exporter.stderr.read() == ""
    found = {
        (sample.name, sample.labels.get("device")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["forebay_memory_allocated_bytes", "cpu"] >= 32 << 20
    assert found["forebay_memory_reserved_bytes", "cuda:0"] == 2 << 20
    assert found["forebay_processes", None] == 1


def test_exporter_prints_once_and_refuses_a_used_port(runner, runtime_directory):
    pytest.importorskip("prometheus_client", reason="the extra exporter is not installed")
    assert "forebay_processes 0.0" in runner.command(COMMAND, "exporter", "--once").out
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = runner.command(COMMAND, "exporter", "--port", port)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.err
    assert runner.command(COMMAND, "exporter", "--port", "65536").status == 2
