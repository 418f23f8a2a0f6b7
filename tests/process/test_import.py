"""The modules that `import forebay` loads, in a fresh process. `dev.py bench import` measures the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_MODULES = 177  # of forebay; each takes about 0.2 ms. The base classes of Tensor are three of them.

# Slow, or of no use before a command, a report or an extra needs them.
UNNEEDED = {
    *("asyncio", "concurrent.futures", "ctypes.util", "difflib", "email", "html", "http", "importlib.metadata"),
    *("logging", "multiprocessing.pool", "rich", "ssl", "subprocess", "tempfile", "tomllib", "unittest", "uuid"),
    *(
        "zipfile",
        "forebay.commands.cli",
        "forebay.commands",
        "forebay.cuda",
        "forebay.mps",
        "forebay.mtia",
        "forebay.observe",
    ),
    *("forebay.simulate", "forebay.snapshot.report", "forebay.snapshot.analysis", "forebay.snapshot.formats"),
    *("forebay.testing", "forebay.backends.host", "forebay.backends.emulated", "forebay.runtime.graphs"),
}


@pytest.fixture(scope="module")
def loaded():
    """The modules that forebay loads beyond NumPy's."""
    program = "import sys, numpy; before = {*sys.modules}; import forebay; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_no_unneeded_module(loaded):
    assert loaded & UNNEEDED == set()


def test_import_loads_a_limited_number_of_modules(loaded):
    assert len([name for name in loaded if name.startswith("forebay")]) <= MOST_MODULES


def test_submodules_are_imported_at_their_first_use():
    program = "import sys, forebay; forebay.cuda; print('forebay.cuda' in sys.modules, 'forebay.mps' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
