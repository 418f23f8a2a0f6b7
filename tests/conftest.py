"""Fixtures that every test may use: a clean CPU device, emulated and fake devices, stand-in vendor libraries."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import forebay
from forebay import backends
from forebay.backends.nvidia import nvml
from forebay.cuda._kind import CUDA
from forebay.observe.telemetry import amdsmi
from forebay.runtime.devices import current, open_device
from forebay.runtime.history import recording
from forebay.runtime.lifecycle.emulation import reset_kind
from forebay.runtime.random import generator as generators
from forebay.testing.fake import FakeDriver

pytest.register_assert_rewrite("support")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job, whose children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders and files whose tests have the marker `slow`. `--quick` does not even import them.
SLOW = (
    "backends/metal",  # child processes
    "backends/nvidia",  # child processes
    "names/test_on_oracle.py",  # child processes
    "names/test_torch_like_program.py",  # child processes
    "golden",  # long recorded traces
    "house/test_gpu_processes.py",  # child processes that run out of time
    "house/test_gpu_task.py",  # child processes
    "house/test_gpu_truth.py",  # child processes
    "house/test_mac_task.py",  # child processes
    "house/test_docstrings.py",  # all docstrings through numpydoc
    "house/test_one_line.py",  # child processes
    "house/test_stubs.py",  # runs of stubtest
    "interop/test_cupy.py",  # child processes
    "interop/test_numba.py",  # child processes
    "interop/test_rmm.py",  # child processes
    "interop/test_shared_allocator_page.py",  # child processes
    "interop/test_ipython.py",  # a kernel that executes a notebook
    "interop/test_with_torch.py",  # child processes
    "interop/torch/processes",  # child processes
    "interop/torch/test_allocator.py",  # child processes
    "interop/torch/test_recorded_workspaces.py",  # more than a thousand calls, child processes
    "interop/torch/test_gpu_truth.py",  # large models
    "native/test_sanitizers.py",  # builds with sanitizers
    "observe/test_mps_logs.py",  # child processes
    "process",  # child processes
    "property",  # random programs
    "rehearsal/test_launch.py",  # child processes
    "rehearsal/test_private_folder.py",  # child processes
    "runtime/allocator/test_faults.py",  # one run per call that can fail
    "runtime/graphs/test_random_programs.py",  # random programs
    "runtime/tensors/test_dlpack_libraries.py",  # child processes
    "snapshot/formats/test_torch_columns.py",  # large files
    "snapshot/report/test_browser.py",  # a browser
    "snapshot/test_hostile_files.py",  # child processes, large files
    "support_tests",  # tests of the reference models
    "test_forebay_command.py",  # child processes
    "test_import_as_torch.py",  # child processes
    "test_torch_alias.py",  # child processes
    "testing/test_emulated.py",  # pytest in child processes
    "testing/test_plugin.py",  # pytest in child processes
)


@cache
def in_slow_file(path: Path) -> bool:
    tests = Path(__file__).parent
    return path.is_relative_to(tests) and any(path.is_relative_to(tests / slow) for slow in SLOW)


def is_slow(item: pytest.Item) -> bool:
    property_test = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    other_backend = item.path.name == "test_conformance.py" and "cpu:0" not in item.name  # one backend is enough
    return property_test or other_backend or in_slow_file(item.path) or bool(item.get_closest_marker("oracle"))


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="run only the tests without the marker slow")


def pytest_configure(config):
    if config.getoption("--quick"):
        config.option.doctestmodules = False  # it would import all modules to look for examples


def pytest_ignore_collect(collection_path, config):
    return True if config.getoption("--quick") and in_slow_file(collection_path) else None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if is_slow(item):
            item.add_marker("slow")
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish():
    gc.freeze()  # many tests call gc.collect(), which would scan the objects of all collected tests each time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    for opened in open_device.open_devices().devices:
        if opened.allocator.recording:  # an earlier test or example left it on
            recording.start(opened.allocator, None)
    result = yield
    gc.collect()
    gc.freeze()  # likewise, what the test has imported
    return result


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).parents[1]


os.environ.pop("PYTHONUNBUFFERED", None)  # child processes buffer their output as programs of users do
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it hides emulated devices, too


@pytest.fixture
def clean():
    """Check that the CPU device has no more memory in use afterwards, and restore the current device."""
    here = current.thread_state()
    before = here.save()
    forebay.set_device("cpu")
    host = current.opened_for("cpu")
    held = forebay.memory.memory_allocated("cpu")
    yield
    here.device, here.indices, here.streams = before
    here.stream_stack.clear()
    here.clear_cache()
    forebay.synchronize("cpu")
    if forebay.memory.memory_allocated("cpu") > held:
        gc.collect()  # only if needed, as it takes milliseconds
    assert forebay.memory.memory_allocated("cpu") <= held
    assert host.allocator.check_invariants() is None
    assert host.pinned.check_invariants() is None
    assert host.allocator.failures == {}


@pytest.fixture
def emulated(clean):
    """Two devices of 64 MiB, "cuda:0" and "cuda:1"."""
    with forebay.emulate("cuda", count=2, memory="64MiB") as emulation:
        yield emulation


@pytest.fixture
def eight_threads():
    """Return a function that runs `work(0)` to `work(7)` concurrently and fails if one fails or takes a minute."""

    def run(work):
        failures = []

        def go(number):
            try:
                work(number)
            except BaseException as error:  # noqa: BLE001 -- reported by the test
                failures.append(error)

        threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert not any(thread.is_alive() for thread in threads)

    return run


@pytest.fixture
def untouched_seeds(clean, monkeypatch):
    """Replace the default generators and seeds by none, as at the start of a process."""
    monkeypatch.setattr(generators, "_defaults", {})
    monkeypatch.setattr(generators, "_seeds", {})
    monkeypatch.setattr(generators, "_recent", (None, None))
    monkeypatch.setattr(generators, "default_generators", {})


@pytest.fixture
def generator():
    return forebay.Generator("cpu").manual_seed(7)


@pytest.fixture
def fake(clean):
    """Register a driver of two fake devices of 64 MiB, "fake:0" and "fake:1"."""
    driver = FakeDriver(2, 64 << 20)
    with backends.override_driver(driver):
        yield driver
        for device, opened in list(open_device._opened.items()):
            if device.kind == "fake":
                assert opened.allocator.check_invariants() is None
                del open_device._opened[device]
        open_device.named_devices("fake").clear()
        pinned = open_device._pinned.pop("fake", None)
        assert pinned is None or pinned.check_invariants() is None


@pytest.fixture
def plugin(monkeypatch):
    """Install a backend package that tests break, beside a package with kind fake."""
    from support.broken_plugin import KIND, Plugin

    made, module = Plugin(), types.ModuleType("acme_bad")
    monkeypatch.setitem(sys.modules, "acme_bad", module)
    monkeypatch.setattr(module, "Driver", made.driver, raising=False)
    entries = [
        EntryPoint(KIND, "acme_bad:Driver", backends.GROUP),
        EntryPoint("fake", "forebay.testing.fake:FakeDriver", backends.GROUP),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    monkeypatch.setattr(backends, "_drivers", backends._Drivers())
    before = forebay.memory.memory_allocated("cpu")
    yield made
    made.broken = False
    # Other devices work, whatever the broken package did.
    assert forebay.full((3,), 7.0, device="cpu").tolist() == [7.0] * 3
    assert forebay.memory.memory_allocated("cpu") == before
    with forebay.Stream("fake:0") as stream:
        forebay.empty(3, device="fake:0")
        stream.synchronize()
    for kind in (KIND, "fake"):
        reset_kind(kind)


@pytest.fixture
def apple():
    """Emulate an MPS device."""
    with forebay.emulate("mps", profile="apple_m3_max") as emulation:
        yield emulation


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Hide all vendor libraries."""
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "none.so"))
    for name in ("pynvml", "amdsmi", "psutil"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(amdsmi, "find_spec", sys.modules.get)
    for name in ("CUDA", "HIP", "ROCR"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def as_if_real(monkeypatch):
    """Make CUDA devices report that they are not emulated."""
    describe = CUDA.describe
    monkeypatch.setattr(CUDA, "describe", lambda device=None: replace(describe(device), emulated=False))


@pytest.fixture
def runtime_directory(monkeypatch):
    """A directory for sockets with a short path, as paths of sockets have at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="fb"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def pynvml(monkeypatch):
    from support.vendor_libraries import pynvml_module

    module = pynvml_module()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture
def rocm(monkeypatch):
    from support.vendor_libraries import amdsmi_module

    module = amdsmi_module()
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a temporary folder that other users can enter.

    Those of pytest are below a folder that each start of pytest closes to others, also while this test runs.
    """
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
