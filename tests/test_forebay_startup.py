"""FOREBAY_EMULATE reaches PyTorch in programs that do not import forebay."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

SOURCES = Path(__file__).parents[1] / "src"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a program where forebay_startup.pth is installed."""
    (tmp_path / "forebay_startup.pth").write_text((SOURCES / "forebay_startup.pth").read_text())
    # Python executes it in the folders of installed packages, to which the tests cannot add.
    (tmp_path / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(tmp_path)!r})\n")

    def run(source, **environment):
        (tmp_path / "train.py").write_text(dedent(source))
        environment = os.environ | environment
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(SOURCES), *filter(None, sys.path)])
        command = [sys.executable, "train.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@needs_torch
def test_pytorch_uses_the_devices_of_the_environment_also_in_child_processes(run):
    source = """
        import multiprocessing, subprocess, sys
        import torch

        def work():
            print(torch.ones(2, device="cuda:1").sum().item(), torch.cuda.get_device_name(), flush=True)

        if __name__ == "__main__":
            print(torch.cuda.is_available(), torch.cuda.device_count(), flush=True)
            work()
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
            subprocess.run([sys.executable, "-c", "import train; train.work()"], check=True)
    """
    printed = run(source, FOREBAY_EMULATE="cuda:2@h100")
    assert printed == "True 2\n" + 3 * "2.0 NVIDIA H100 80GB HBM3 (emulated)\n"


@needs_torch
def test_mode_is_that_of_the_environment_and_a_patch_of_the_program_replaces_it(run):
    source = """
        import torch
        from forebay.interop.torch.devices import values
        print(values.is_computed())
        import forebay.interop.torch
        with forebay.interop.torch.patch():
            print(values.is_computed(), torch.ones(2, device="cuda").sum().item())
        print(torch.cuda.is_available())
    """
    assert run(source, FOREBAY_EMULATE="cuda@h100", FOREBAY_TORCH="shapes") == "False\nTrue 2.0\nFalse\n"


@needs_torch
@pytest.mark.parametrize("emulated", ["", "mps", "mtia:2"])
def test_pytorch_is_left_as_it_is_without_emulated_cuda_devices(run, emulated):
    source = """
        import torch
        import sys
        print(torch.cuda.is_available(), "forebay" in sys.modules)
    """
    assert run(source, FOREBAY_EMULATE=emulated) == "False False\n"


def test_program_without_pytorch_imports_nothing_of_forebay(run):
    source = "import sys; print(any(name.startswith('forebay.') for name in sys.modules))"
    assert run(source, FOREBAY_EMULATE="cuda") == "False\n"
