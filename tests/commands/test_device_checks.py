"""`forebay doctor` works on each device that is not emulated, and reports those that fail, hang or are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import software_driver

from forebay import emulate
from forebay.commands import doctor
from forebay.commands.checks import CHECKS, Check
from forebay.commands.cli import main
from forebay.commands.device_checks import device_check, remedy_for

# Faults of the software driver in the child that checks the second GPU. Python imports this module when it starts.
FAULTS = """
import ctypes, sys
if "device cuda:1" in sys.orig_argv:
    {}
"""
FAILURES = {
    "a call fails": (
        'ctypes.CDLL("libcuda.so.1").softcuda_fail(b"cuMemcpyAsync", ctypes.c_uint64(0), 999, 0)',
        "CUDA error: unknown error",
        "nvidia-smi",
    ),
    "memory is full": (
        'ctypes.CDLL("libcuda.so.1").softcuda_fail(b"cuMemAlloc", ctypes.c_uint64(0), 2, 1)',
        "CUDA error: out of memory",
        "its memory is in use",
    ),
    "the process crashes": ("import os; os.abort()", "killed by SIGABRT", "nvidia-smi"),
}


@pytest.fixture
def no_checks(monkeypatch):
    """Leave out all checks but those of the devices."""
    monkeypatch.setattr(doctor, "CHECKS", [Check("native core", lambda: "", "")])


# Each check is a process: of the checks that are not about devices, one is enough.
WITH_ONE_OTHER_CHECK = """
import sys
from forebay.commands import cli, doctor
doctor.CHECKS = doctor.CHECKS[:1]
sys.exit(cli.main(sys.argv[1:]))
"""


def doctor_on_gpus(folder, *options, command=("-c", WITH_ONE_OTHER_CHECK), **variables):
    """Run `forebay doctor --json` with the software driver. Return its status and its checks by name."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    variables = software_driver.environment(**variables)
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), variables["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, *command, "doctor", "--json", *options],
        env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.returncode, {check.pop("check"): check for check in json.loads(done.stdout)["checks"]}


linux = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")


@linux
@pytest.mark.slow
@pytest.mark.parametrize("has_nvidia_ml_py", [True, False])
def test_gpus_are_used_and_what_is_missing_has_a_reason(tmp_path, has_nvidia_ml_py):
    (tmp_path / "pynvml.py").write_text("nvmlInit = None" if has_nvidia_ml_py else "raise ModuleNotFoundError")
    every = {"command": ("-m", "forebay")} if has_nvidia_ml_py else {}
    status, found = doctor_on_gpus(tmp_path, **every)
    assert status == 0
    kinds = ("cpu", "cuda:0", "cuda:1", "mps", "mtia", *(() if has_nvidia_ml_py else ("sensors",)))
    others = [check.name for check in (CHECKS if every else CHECKS[:1])]
    assert [*found] == [*others, *(f"device {name}" for name in kinds)]
    text = "Software device: 1.00 MiB copied there and back, an event reached, memory freed"
    for name in ("device cuda:0", "device cuda:1"):
        assert found[name] == {"passed": True, "message": text, "remedy": None}
    assert found["device cpu"]["passed"]
    assert found["device mtia"]["passed"] is None
    assert found["device mtia"]["message"].startswith("none: this version of forebay has no backend for mtia")
    if not has_nvidia_ml_py:
        assert found["device sensors"]["passed"] is None
        assert found["device sensors"]["message"].startswith("none: nvidia-ml-py is not installed")


@linux
@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_failing_gpu_is_reported_and_the_others_are_checked(tmp_path, case):
    code, message, remedy = FAILURES[case]
    (tmp_path / "sitecustomize.py").write_text(FAULTS.format(code))
    status, found = doctor_on_gpus(tmp_path)
    assert status == 1
    assert [name for name, check in found.items() if check["passed"] is False] == ["device cuda:1"]
    assert message in found["device cuda:1"]["message"]
    assert remedy in found["device cuda:1"]["remedy"]
    assert found["device cuda:0"]["passed"]


@linux
@pytest.mark.slow
def test_devices_can_be_left_out(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAULTS.format("raise SystemExit(9)"))
    status, found = doctor_on_gpus(tmp_path, "--no-devices")
    assert (status, [*found]) == (0, [CHECKS[0].name])


@linux
@pytest.mark.slow
def test_check_of_a_gpu_leaves_nothing():
    program = """
import ctypes
from forebay.commands.device_checks import work_on
print(work_on("cuda:1"))
soft = ctypes.CDLL("libcuda.so.1")
print(*(soft.softcuda_live(name) for name in (b"device", b"pinned", b"mapped")))
"""
    message, live = software_driver.lines_of(program, silent=True)
    assert message.startswith("Software device: ")
    assert live == "0 0 0"


def test_emulated_devices_are_not_used(capsys, no_checks, monkeypatch):
    monkeypatch.setenv("FOREBAY_EMULATE", "cuda:2@h200")
    assert main(["doctor"]) == 0
    names = [line.split()[2] for line in capsys.readouterr().out.splitlines() if "device" in line]
    assert names[0] == "cpu"
    assert not any(name.startswith("cuda") for name in names)


def test_emulated_device_that_is_named_is_not_used(capsys):
    with emulate("cuda", profile="h200"):
        assert main(["doctor", "--check", "device cuda:0"]) == 0
    assert capsys.readouterr().out == "not used, as NVIDIA H200 (emulated) is emulated\n"


def test_device_that_never_ends_does_not_delay_the_command(capsys, monkeypatch, no_checks):
    codes = {
        "doctor": "",
        "-c": """print('{"devices": ["cuda:0"], "missing": {}}')""",
        "hangs": "import time; time.sleep(9)",
    }
    start = subprocess.Popen

    class Unkillable(start):  # as a process that waits inside a driver
        def kill(self) -> None:
            pass

    started = []

    def start_code(command, **settings):
        name = "hangs" if command[-1] == "device cuda:0" else "doctor" if "doctor" in command else "-c"
        started.append((Unkillable if name == "hangs" else start)([sys.executable, "-c", codes[name]], **settings))
        return started[-1]

    monkeypatch.setattr(doctor.subprocess, "Popen", start_code)
    monkeypatch.setattr(doctor, "LIMIT", 0.5)
    monkeypatch.setattr(doctor, "KILL_LIMIT", 0.1)
    try:
        assert main(["doctor"]) == 1
        assert all(child.poll() is not None for child in started[:-1])
        assert started[-1].poll() is None
    finally:
        start.kill(started[-1])
        started[-1].communicate()
    output = capsys.readouterr().out
    assert "✗ device cuda:0  not finished after 0.5 s\n" in output
    assert "its driver does not respond" in output


def test_devices_that_cannot_be_listed_fail_one_check(capsys, monkeypatch):
    outcomes = {"-m": (True, "well"), "-c": (False, "killed by SIGSEGV")}
    monkeypatch.setattr(doctor, "CHECKS", [Check("native core", lambda: "", "")])
    monkeypatch.setattr(doctor, "_run_child", lambda *arguments: outcomes[arguments[0]])
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "✗ devices      killed by SIGSEGV\n" in output
    assert "please report it" in output
    assert output.endswith("1 of 2 checks failed\n")


def test_check_of_a_device_has_a_remedy_for_each_message():
    check = device_check("cuda:7")
    assert check.name == "device cuda:7"
    assert check.what_to_do("AssertionError: the data changed on the way to the device and back") == remedy_for(
        "the data changed"
    )
    assert "corrupts data" in remedy_for("the data changed")
    assert "memory is in use" in remedy_for("forebay.OutOfMemory: cuda:0: requested 1.00 MiB")
    assert "--no-devices" in remedy_for("CUDA error: unknown error")
