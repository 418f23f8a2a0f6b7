"""`forebay fit` of modules, code, launchers and commands on PATH, as processes with PyTorch."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
MIB = 1 << 20
USE = "import sys, torch; x = torch.ones(len(sys.argv) << 18, device='cuda')"


def fit(runner, *arguments, **settings):
    observed = runner.command("-m", "forebay", "fit", "--cards", "h100", "--json", *arguments, **settings)
    (found,) = json.loads(observed.out)
    return found


@needs_torch
@pytest.mark.parametrize(
    ("arguments", "mib"),
    [(("script.py", "a"), 2), (("-m", "script", "-x", "--y"), 3), (("-c", USE), 1), (("python", "script.py"), 1)],
)
def test_forms_of_python_run(runner, arguments, mib):
    runner.write(USE)
    found = fit(runner, *arguments)
    assert (found["verdict"], found["peak_allocated"]) == ("fits", mib * MIB), found


@needs_torch
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun of PyTorch for macOS needs a name of the host")
def test_launcher_runs_its_processes(runner):
    runner.write(f"{USE}\nprint(x.device)")
    found = fit(runner, "torchrun", "--nproc-per-node", "2", "--standalone", "script.py")
    assert (found["verdict"], found["processes"]) == ("fits", 2), found


@needs_torch
def test_command_on_path_runs(runner):
    runner.write(USE)
    folder = runner.folder / "bin"
    folder.mkdir()
    (folder / "train").write_text(f"#!{sys.executable}\n{USE}\n")
    (folder / "train").chmod(0o755)
    found = fit(runner, "train", "sft", env=os.environ | {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]])})
    assert (found["verdict"], found["peak_allocated"]) == ("fits", 2 * MIB), found
