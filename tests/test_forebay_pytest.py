"""The pytest plugin that an installed forebay adds: off until used, with markers for peaks and leaks."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.beside import TORCH, needs_torch, paths_of_sources

import forebay_pytest

ROOT = Path(forebay_pytest.__file__).parents[1]
ARRAYS = """
import numpy as np, pytest, forebay
kept = []

def make(mib):
    return np.ones(mib << 17)

@pytest.mark.forebay_peak("20MiB")
def test_below():
    make(10)

@pytest.mark.forebay_peak("20MiB")
def test_above():
    make(30)

@pytest.mark.forebay_peak(20 << 20)
def test_bytes():
    make(10)

@pytest.mark.forebay_leaks
def test_clean():
    make(5)

@pytest.mark.forebay_leaks
def test_leak():
    kept.append(make(5))

@pytest.mark.forebay_leaks
def test_own_failure_is_kept():
    kept.append(make(5))
    assert False, "my own"

@pytest.mark.forebay_peak("1GiB")
@pytest.mark.forebay_leaks()
def test_both():
    kept.append(make(6))

@pytest.mark.forebay_peak("much")
def test_wrong_limit():
    pass

@pytest.mark.forebay_peak(-1)
def test_negative_limit():
    pass

@pytest.mark.forebay_leaks("cpu", 2)
def test_too_many_arguments():
    pass

@pytest.mark.forebay_peak("1MiB", device="cuda")
@pytest.mark.forebay_leaks(device="cuda")
def test_device(emulated_cuda):
    kept.append(forebay.zeros(1 << 20, device="cuda"))

@pytest.mark.forebay_peak("20MiB")
@pytest.mark.parametrize("mib", [1, 21])
def test_parameters(mib):
    make(mib)

def test_unmarked():
    make(40)
"""
OFF = """
import sys

def test_nothing_is_imported():
    assert not [name for name in sys.modules if name.partition(".")[0] in ("forebay", "numpy", "torch")]
"""
TORCH_LEAKS = """
import torch
store = []

def test_leak(emulated_torch):
    store.append(torch.empty(1_000_000, device="cuda"))

def test_workspaces_are_no_leak(emulated_torch):
    x = torch.ones(100, 100, device="cuda", requires_grad=True)
    (x @ x).sum().backward()

def test_failure_is_no_leak(emulated_torch):
    y = torch.ones(100, device="cuda")
    assert False
"""


def run(folder, source, *options, python=sys.executable):
    (folder / "test_it.py").write_text(source)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "forebay_pytest", "--strict-markers"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([paths_of_sources(), *filter(None, sys.path)])}
    if python != sys.executable:
        variables["PYTHONPATH"] = paths_of_sources()
    done = subprocess.run(
        [*command, *options], cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_markers_limit_peaks_and_find_leaks(tmp_path):
    output = run(tmp_path, ARRAYS, "--forebay-peaks")
    failed = {line.split()[1].partition("::")[2] for line in output.splitlines() if line.startswith("FAILED")}
    wrong = {"test_wrong_limit", "test_negative_limit", "test_too_many_arguments"}
    leaks = {"test_leak", "test_both", "test_own_failure_is_kept"}
    assert failed == wrong | leaks | {"test_above", "test_device", "test_parameters[21]"}, output
    assert "cpu: the peak is 30.00 MiB, 10.00 MiB more than 20.00 MiB\n  30.00 MiB " in output
    assert "cpu: 5.00 MiB in 1 allocation of the test remain\n  5.00 MiB " in output
    assert "test_it.py:6 make" in output
    assert "cuda: the peak is 4.00 MiB, 3.00 MiB more than 1.00 MiB" in output
    assert "cuda: 4.00 MiB in 1 allocation of the test remain" in output
    assert "AssertionError: my own" in output
    assert "forebay_leaks takes (device='cpu'), not ('cpu', 2)" in output
    assert "   40.00 MiB test_it.py::test_unmarked\n" in output


def test_plugin_imports_nothing_until_it_is_used(tmp_path):
    assert "1 passed" in run(tmp_path, OFF)


def test_entry_point_has_the_name_of_the_module_so_that_it_is_loaded_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"forebay_pytest": "forebay_pytest"}


def test_names_of_options_and_markers_have_a_prefix_of_their_own():
    markers = [text.partition("(")[0] for text in forebay_pytest._MARKERS]
    assert markers == ["forebay_peak", "forebay_leaks", "emulated_torch"]


@needs_torch
def test_leaks_of_pytorch_are_found(tmp_path):
    output = run(tmp_path, TORCH_LEAKS, "--forebay-leaks", python=str(TORCH))
    assert "1 failed, 2 passed, 1 error" in output, output
    assert "ERROR test_it.py::test_leak" in output
    assert "the test leaves device memory in use:\ncuda:0\n  3.81 MiB in 1 block: " in output
    assert "test_it.py:6 test_leak" in output


@pytest.mark.parametrize("options", [[], ["--forebay-peaks"]])
def test_run_without_tests_and_without_use_prints_no_error(tmp_path, options):
    output = run(tmp_path, "", *options)
    assert "no tests ran" in output
    assert "Error" not in output
