"""Discovery of NVIDIA's GPUs, and the reasons why there are none, each in a process of its own."""

from __future__ import annotations

import ctypes.util
import sys

import pytest
from support.software_driver import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

WITH_NODES = """
import pathlib, tempfile
from forebay.backends.nvidia import discovery
folder = tempfile.TemporaryDirectory()
pathlib.Path(folder.name, "nvidiactl").touch()
discovery._DEVICES = pathlib.Path(folder.name)
"""
ASK = """
from forebay.backends.nvidia.discovery import discover
print(discover().count, discover().reason)
"""
HIDDEN = "import sys; sys.modules['cuda.bindings'] = None\n"
NO_NODES = (
    "0 the NVIDIA driver's library is installed, but there are no device nodes /dev/nvidia*: a container must be "
    "started with access to GPUs (docker run --gpus all), and the system needs the kernel module nvidia\n"
)
MISMATCH = (
    "0 the NVIDIA driver cannot be initialised: cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803), system has "
    "unsupported display driver / cuda driver combination; the driver's library and its kernel module have different "
    "versions: restart the machine or the container\n"
)
FORKED = (
    "CUDA was initialised before this process was forked, and does not survive a fork: start processes with the method "
    "'spawn' or 'forkserver'"
)


@pytest.mark.parametrize(
    ("program", "variables", "expected"),
    [
        (ASK, {}, "2 \n"),
        (WITH_NODES + ASK, {"SOFTCUDA_DEVICES": "0"}, "0 the NVIDIA driver finds no GPU\n"),
        (
            ASK,
            {"CUDA_VISIBLE_DEVICES": ""},
            "0 CUDA_VISIBLE_DEVICES is '', which hides all 2 GPUs of this machine\n",
        ),
        (
            ASK,
            {"CUDA_VISIBLE_DEVICES": "7", "SOFTCUDA_NVML_ERROR": "9"},
            "0 CUDA_VISIBLE_DEVICES is '7'\n",
        ),
        (
            WITH_NODES + ASK,
            {"CUDA_VISIBLE_DEVICES": "0", "SOFTCUDA_DEVICES": "0"},
            "0 the NVIDIA driver finds no GPU\n",
        ),
        (ASK, {"SOFTCUDA_VERSION": "11080"}, "0 the NVIDIA driver supports CUDA 11.8; forebay needs 13.0\n"),
        (HIDDEN + ASK, {}, "0 cuda-bindings is not installed ("),
        (ASK, {"SOFTCUDA_INIT_ERROR": "100"}, NO_NODES),
        (ASK, {"SOFTCUDA_INIT_ERROR": "999"}, NO_NODES),
        (
            WITH_NODES + ASK,
            {"SOFTCUDA_INIT_ERROR": "999"},
            "0 the NVIDIA driver cannot be initialised: cuInit returned CUDA_ERROR_UNKNOWN (999), unknown error\n",
        ),
        (
            WITH_NODES + ASK,
            {"SOFTCUDA_INIT_ERROR": "803"},
            MISMATCH,
        ),
        (
            WITH_NODES + ASK,
            {"SOFTCUDA_INIT_ERROR": "12345"},
            "0 the NVIDIA driver is newer than cuda-bindings, which has no name for: 12345",
        ),
        (
            ASK,
            {"FOREBAY_DRIVER_TIMEOUT": "soon"},
            "0 environment variable FOREBAY_DRIVER_TIMEOUT: 'soon' is not a number of seconds, as 2.5\n",
        ),
    ],
    ids=[
        "devices", "no device", "hidden", "hidden without NVML", "hidden and no device", "old driver", "no bindings",
        "no device nodes", "unknown without device nodes", "unknown", "mismatch", "unknown code", "bad setting",
    ],
)  # fmt: skip
def test_reason_without_devices(program, variables, expected):
    done = run(program, **variables)
    assert done.stdout.startswith(expected), done.stderr
    assert len(done.stdout.splitlines()) == 1  # one sentence


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has NVIDIA's driver")
def test_missing_driver_is_named():
    done = run(ASK, driver=False)
    expected = "0 the NVIDIA driver is not installed, or not visible in this container ("
    assert done.stdout.startswith(expected), done.stderr


def test_driver_that_hangs_is_reported_and_does_not_keep_the_process():
    program = (
        """
import time
begun = time.monotonic()
"""
        + ASK
        + """
print(time.monotonic() - begun < 60)
begun = time.monotonic()
discover().count
print(time.monotonic() - begun < 0.2)  # the limit applies once
"""
    )
    done = run(program, SOFTCUDA_INIT_SECONDS="100000", FOREBAY_DRIVER_TIMEOUT="0.3")
    assert done.stdout.splitlines() == [
        "0 the NVIDIA driver does not respond: cuInit did not return within 0.3 seconds",
        "True",
        "True",
    ]
    assert done.returncode == 0, done.stderr


def test_wait_for_a_driver_that_hangs_can_be_interrupted():
    program = """
import os, signal, threading
from forebay.backends.nvidia.discovery import discover
from forebay.backends.nvidia.driver import CudaDriver
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    CudaDriver().count()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(program, SOFTCUDA_INIT_SECONDS="100000", FOREBAY_DRIVER_TIMEOUT="60").stdout == "interrupted\n"


def test_slow_driver_is_found_later():
    program = """
import time
from forebay.backends.nvidia.discovery import discover
from forebay.backends.nvidia.driver import CudaDriver
driver = CudaDriver()
print(driver.count())
limit = time.monotonic() + 60
while not driver.count() and time.monotonic() < limit:
    time.sleep(0.05)
print(driver.count(), driver.describe(1).name)
"""
    done = run(program, SOFTCUDA_INIT_SECONDS="1", FOREBAY_DRIVER_TIMEOUT="0.1")
    assert done.stdout == "0\n2 Software device\n", done.stderr


@pytest.mark.parametrize(
    "before",
    ["CudaDriver().count()", "from cuda.bindings import driver; driver.cuInit(0)"],
    ids=["forebay", "another library"],
)
def test_forked_child_has_no_devices_and_one_reason(before):
    program = f"""
import os
from forebay import DeviceError
from forebay.backends.nvidia.discovery import discover
from forebay.backends.nvidia.driver import CudaDriver
{before}
child = os.fork()
if not child:
    print(discover().count, discover().reason)
    try:
        CudaDriver().open(0)
    except DeviceError as error:
        print(error.code, error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(CudaDriver().count())
"""
    assert run(program).stdout == f"0 {FORKED}\n3 {FORKED}\n2\n"


def test_forked_child_finds_devices_if_the_parent_did_not_look():
    program = """
import os
from forebay.backends.nvidia.discovery import discover
from forebay.backends.nvidia.driver import CudaDriver
child = os.fork()
if not child:
    print(CudaDriver().count(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert run(program).stdout == "2\n"


def test_devices_are_counted_without_the_driver_after_the_first_time():
    program = """
import ctypes
from forebay.backends.nvidia.discovery import discover
from forebay.backends.nvidia.driver import CudaDriver
driver = CudaDriver()
driver.count()
library = ctypes.CDLL("libcuda.so.1")
before = library.softcuda_calls(b"")
print(driver.count(), library.softcuda_calls(b"") - before)
"""
    assert run(program).stdout == "2 0\n"


@pytest.mark.parametrize(
    ("variables", "first_line"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES is ''"),
        ({"SOFTCUDA_VERSION": "11080"}, "the NVIDIA driver supports CUDA 11.8"),
    ],
)
def test_text_for_users_begins_as_in_pytorch(variables, first_line):
    assert run("import forebay; print(forebay.why_not('cuda'))", **variables).stdout.startswith(first_line)


def test_text_for_users_without_the_bindings():
    lines = run(HIDDEN + "import forebay; print(forebay.why_not('cuda'))").stdout.splitlines()
    assert lines[0].startswith("Found no NVIDIA driver on your system.")
    assert lines[1].startswith("cuda-bindings is not installed (")
    assert lines[1].endswith(": pip install 'forebay[cuda]'; forebay can emulate a GPU: forebay.emulate('cuda')")
