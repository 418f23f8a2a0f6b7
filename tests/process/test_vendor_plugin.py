"""examples/vendor_plugin, installed with pip into a virtual environment, provides kind mtia."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from textwrap import dedent

import pytest

import forebay

pytestmark = pytest.mark.timeout(300)

LIMIT = 200  # seconds per child process; all but the conformance suite need about one
PACKAGE = Path(forebay.__file__).parents[1]


class Environment:
    """A virtual environment with this one's packages on its path, and additional packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self.executable = str(folder / "bin/python")
        site = self.output("import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        shared = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(PACKAGE)])
        (Path(site) / "shared.pth").write_text("\n".join(shared))

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "FOREBAY"))}
        return subprocess.run(
            [self.executable, *arguments], cwd=self.folder, env={**inherited, "COLUMNS": "500", **settings},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip

    def output(self, source: str, **settings: str) -> str:
        """Run a program, which must succeed without a warning, and return its output."""
        done = self.run("-W", "error", "-c", dedent(source), **settings)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def pip(self, *arguments: str) -> None:
        pip("--python", self.executable, *arguments)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory) -> str:
    """Wheel of the plug-in."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(root / "examples/vendor_plugin", folder / "source")  # a copy, as the build leaves files behind
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(folder / "source"))
    (found,) = folder.glob("*.whl")
    return str(found)


@pytest.fixture(scope="module")
def installed(root, wheel, tmp_path_factory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.pip("install", "--no-deps", "--no-index", wheel)
    shutil.copy(root / "examples/vendor_plugin/tests/test_conformance.py", environment.folder)
    return environment


REMOVE_METHODS = """
import os
from forebay_acme.port import AcmePort
from forebay_acme.queue import AcmeQueue
for name in os.environ.get("REMOVE_METHODS", "").split():
    delattr(AcmeQueue if hasattr(AcmeQueue, name) else AcmePort, name)
"""


@pytest.mark.parametrize(
    ("ability", "methods"),
    [
        ("RandomNumbers", "draw"),
        ("StridedCopies", "copy_strided"),
        ("Launches", "call call_native"),
        ("Timing", "mark elapsed_ms"),
        ("PinnedHost", "pin unpin"),
    ],
)
def test_conformance_suite_passes_without_an_ability(installed, ability, methods):
    """A vendor implements one ability after the other."""
    (installed.folder / "conftest.py").write_text(REMOVE_METHODS)
    options = "-q", "-rs", "-W", "error", "-p", "no:cacheprovider", "-k", "mtia:0"
    done = installed.run("-m", "pytest", *options, REMOVE_METHODS=methods)
    assert done.returncode == 0, done.stdout
    assert f"mtia lacks the ability {ability}" in done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 150


def test_conformance_suite_passes(installed):
    lines = (installed.folder / "test_conformance.py").read_text().split("\n")
    assert len([line for line in lines if line]) == 2
    done = installed.run("-m", "pytest", "-q", "-rs", "-W", "error", "-p", "no:cacheprovider", "-k", "mtia:")
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 300
    lacking = set(re.findall(r"mtia lacks the ability (\w+)", done.stdout))
    absent = {
        "ExecutionLog",
        "ExternalQueues",
        "Growable",
        "IdentifiesMemory",
        "ReportsIdle",
        "Resizable",
        "StorageModes",
    }
    assert lacking == absent | {"Shares", "SurvivesFork"}


def test_kind_is_available_only_while_installed(wheel, tmp_path):
    environment, count = Environment(tmp_path), "import forebay; print(forebay.device_count('mtia'))"
    assert environment.output(count) == "0\n"
    for _ in range(2):
        environment.pip("install", "--no-deps", "--no-index", wheel)
        assert environment.output(count) == "2\n"
        environment.pip("uninstall", "--yes", "forebay-acme")
        assert environment.output(count) == "0\n"


def test_lookup_imports_and_starts_nothing(installed):
    assert installed.output("""
        import sys, forebay
        assert "forebay_acme" not in sys.modules
        print(forebay.device_count("mtia"), forebay.device_count("cuda"))
        import forebay_acme.card, threading
        print(threading.active_count())
    """) == "2 0\n1\n"  # fmt: skip


def test_allocator_works(installed):
    assert installed.output("""
        import forebay
        from forebay import memory
        block = forebay.allocate(5 << 20, "mtia:1")
        address = block.address
        block.free()
        assert forebay.allocate(5 << 20, "mtia:1").address == address
        assert memory.memory_reserved("mtia:1") == 20 << 20 and memory.memory_reserved("mtia:0") == 0
        assert memory.mem_get_info("mtia:1") == ((1 << 30) - (20 << 20), 1 << 30)
        try:
            forebay.allocate(2 << 30, "mtia:0")
        except forebay.OutOfMemory as error:
            print(error.wanted, error.capacity, error.device)
        memory.empty_cache("mtia:1")
        print(memory.memory_reserved("mtia:1"), memory.memory_stats("mtia:0")["num_ooms"])
    """) == "2147483648 1073741824 mtia:0\n0 1\n"  # fmt: skip


def test_history_and_snapshots_work(installed):
    assert installed.output("""
        import forebay
        from forebay import memory
        memory.record_history(device="mtia:0")
        kept = forebay.zeros(1000, device="mtia:0")
        del kept
        found = memory.memory_snapshot("mtia:0")
        print([entry["action"] for entry in found["device_traces"][0]])
        print(len(found["segments"]), found["segments"][0]["total_size"])
    """) == "['segment_alloc', 'alloc', 'free_requested', 'free_completed']\n1 2097152\n"  # fmt: skip


def test_streams_events_and_graphs_work(installed):
    assert installed.output("""
        import forebay
        from forebay.runtime.graphs.graph import Graph
        start, end = forebay.Event(enable_timing=True), forebay.Event(enable_timing=True)
        graph, drawn = Graph(), forebay.empty(4, device="mtia:0")
        forebay.random.manual_seed(3, "mtia:0")
        with forebay.Stream("mtia:0") as stream:
            start.record()
            graph.capture_begin()
            drawn.uniform_()
            graph.capture_end()
            replayed = [(graph.replay(), drawn.tolist())[1] for _ in range(2)]
            end.record()
            stream.synchronize()
        forebay.random.manual_seed(3, "mtia:0")
        assert replayed == [forebay.rand(4, device="mtia:0").tolist() for _ in range(2)]
        print(start.elapsed_time(end) > 0, replayed[0] != replayed[1])
    """) == "True True\n"  # fmt: skip


def test_mtia_module_works(installed):
    assert installed.output("""
        import forebay
        from forebay import accelerator, mtia
        assert mtia.is_available() and not mtia.is_initialized()
        print(mtia.device_count(), mtia.get_device_properties(1), mtia.get_device_capability())
        mtia.manual_seed(11)
        with mtia.device(1):
            counts, graph = forebay.zeros(2, device="mtia"), mtia.MTIAGraph()
            with mtia.graph(graph):
                counts.fill_(7)
            before = counts.tolist()
            graph.replay()
            print(mtia.current_device(), counts.device, before, counts.tolist())
        start, end = mtia.Event(enable_timing=True), mtia.Event(enable_timing=True)
        with mtia.stream(mtia.Stream()) as stream:
            start.record()
            numbers = forebay.rand(3, device="mtia")
            end.record()
        mtia.synchronize()
        mtia.manual_seed(11)
        assert numbers.tolist() == forebay.rand(3, device="mtia").tolist()
        print(start.elapsed_time(end) > 0, mtia.memory_allocated(), mtia.max_memory_allocated() >= 512)
        print(accelerator.current_accelerator(), accelerator.device_count(), accelerator.current_device_index())
    """) == (
        "2 {'major': 1, 'minor': 0, 'name': 'Acme M1', 'total_memory': 1073741824} (1, 0)\n"
        "1 mtia:1 [0.0, 0.0] [7.0, 7.0]\nTrue 512 True\nmtia 2 0\n"
    )  # fmt: skip


def test_mtia_module_raises_for_invalid_use(installed):
    assert installed.output("""
        import forebay
        from forebay import mtia
        for wrong in (lambda: mtia.device(2).__enter__(), lambda: forebay.empty(1 << 40, device="mtia")):
            try:
                wrong()
            except forebay.DeviceError as error:
                print(type(error).__name__)
        graph = mtia.MTIAGraph()
        try:
            with mtia.graph(graph):
                mtia.synchronize()
        except forebay.DeviceError as error:
            print(error.__context__.code, error.code)  # the forbidden call, and the invalid capture
        print(forebay.zeros(2, device="mtia").tolist())
    """) == "DeviceError\nOutOfMemory\n900 901\n[0.0, 0.0]\n"  # fmt: skip


def test_plugin_works_beside_emulated_devices(installed):
    assert installed.output("""
        import forebay
        with forebay.emulate("cuda", profile="h200"):
            source = forebay.rand(100, device="cuda:0")
            copy = source.to("mtia:1")
            assert copy.tolist() == source.tolist() == copy.to("cpu").tolist()
            print(forebay.accelerator.current_accelerator())
    """)  # fmt: skip


def test_info_lists_the_devices(installed):
    done = installed.run("-m", "forebay", "info")
    assert done.returncode == 0
    assert re.search(r"mtia:1 +Acme M1 +1\.0 +1\.00 GiB +1\.00 GiB +no *\n", done.stdout)
    assert "no mtia" not in done.stdout


@pytest.mark.parametrize(
    ("cards", "reason"),
    [
        ("0", "no Acme card was found: is one in the machine?"),
        ("many", "ACME_CARDS must be a number of cards, not 'many'"),
    ],
)
def test_why_not_reports_missing_cards(installed, cards, reason):
    source = """
        import forebay
        from forebay.backends import why_not
        print(forebay.device_count("mtia"), why_not("mtia"))
        assert forebay.zeros(3, device="cpu").tolist() == [0.0] * 3
        try:
            forebay.zeros(3, device="mtia:0")
        except forebay.ForebayError as error:
            print(error)
    """
    lines = installed.output(source, ACME_CARDS=cards).splitlines()
    assert lines[0].startswith(f"0 {reason}")
    assert reason in lines[1]
