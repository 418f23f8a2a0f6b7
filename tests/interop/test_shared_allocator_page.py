"""The programs in docs/how-to/share-one-allocator.md print what the page says, with the real libraries."""

from __future__ import annotations

import re
import sys

import pytest
from support import software_driver
from support.beside import NUMBA, lines_with_torch, needs_torch, paths_of_sources
from support.oracle_programs import on_oracle, run_on_oracle

PAGE = "docs/how-to/share-one-allocator.md"
_NO_RUNTIME = "import cupy, types\ncupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)\n"

needs_numba = pytest.mark.skipif(
    sys.platform != "linux" or not NUMBA.exists(),
    reason="numba-cuda, CuPy and RMM are not installed: `python3 dev.py test` installs them",
)


@pytest.fixture
def section(root):
    """Return the program of a section of the page, its blocks of Python in order, and what the comments say."""

    def find(title):
        (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", (root / PAGE).read_text(), re.DOTALL | re.MULTILINE)
        program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
        return program, re.findall(r"print\(.*\)  # (.*)", program)

    return find


@needs_numba
@pytest.mark.parametrize(("title", "begin"), [("CuPy", _NO_RUNTIME), ("Numba", ""), ("RMM", "")])
def test_programs_of_cuda_libraries(section, title, begin):
    program, printed = section(title)
    done = software_driver.run(begin + program, python=str(NUMBA), PYTHONPATH=paths_of_sources())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed != []


@on_oracle
def test_program_of_torch(section):
    program, printed = section("PyTorch")
    done = run_on_oracle(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed != []


@needs_torch
def test_program_that_exchanges_arrays(section):
    program, _ = section("Exchange arrays")
    check = "forebay.synchronize('cpu')\nprint(ours[0].item(), back.tolist(), same[0].item(), array[0])"
    assert lines_with_torch(program + check, JAX_PLATFORMS="cpu") == ["2.0 [1.0, 1.0, 1.0] 2.0 2"]
