"""The cell magic `%%fit` in IPython."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
pytest.importorskip("cloudpickle", reason="cloudpickle sends the functions of the notebook")
interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")

NOTEBOOK = """
import torch
from torch import nn
size = 1 << 30
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, 4))
"""


@pytest.fixture(scope="module")
def shell():
    found = interactive.InteractiveShell.instance()
    found.run_line_magic("load_ext", "forebay")
    assert found.run_cell(NOTEBOOK).success
    yield found
    found.run_line_magic("unload_ext", "forebay")
    assert "fit" not in found.magics_manager.magics["cell"]


def test_cell_gets_what_the_notebook_defines_and_changes_nothing(shell):
    found = shell.run_cell("%%fit --cards t4,l4\nmodel = Model().cuda()\nsize = 3")
    assert [(each.profile, str(each.verdict)) for each in found.result] == [("t4", "does not fit"), ("l4", "fits")]
    assert shell.user_ns["size"] == 1 << 30
    assert "model" not in shell.user_ns
    assert "<table" in found.result._repr_html_()


def test_error_of_the_cell_is_printed(shell, capsys):
    (found,) = shell.run_cell("%%fit --cards t4 --strict\nraise KeyError('of the cell')").result
    assert not found.fits
    assert "%%fit: KeyError: 'of the cell'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [
        ("--cards h1000", "1", "there is no profile 'h1000'"),
        ("--compute --strict", "1", "not allowed with argument"),
        ("--memory much", "1", "much"),
        ("--cards 't4", "1", "No closing quotation"),
        ("", "1 +* 2", "line 1: invalid syntax"),
        ("", "handle", "cannot be sent to another process"),
    ],
)
def test_errors_are_told_in_one_line(shell, capsys, line, cell, message):
    shell.user_ns["handle"] = threading.Lock()  # cannot be copied
    shell.run_cell(f"%%fit {line}\n{cell}")
    output = "".join(capsys.readouterr())
    assert message in output
    assert "Traceback" not in output
