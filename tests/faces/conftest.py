"""What the tests of the faces share: `on_oracle` (its docstring tells how to write a scene) and stand-in libraries.

Importlib mode would not find them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import forebay
from forebay.cuda._kind import CUDA
from forebay.observe import amdsmi, nvml_library

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def apple():
    """An emulated device of Apple's, and nothing of it before."""
    with forebay.emulate("mps", profile="apple_m3_max") as emulation:
        yield emulation


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without any of these libraries."""
    monkeypatch.setattr(nvml_library, "LIBRARY", str(tmp_path / "none.so"))
    for name in ("pynvml", "amdsmi", "psutil"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(amdsmi, "find_spec", sys.modules.get)
    for name in ("CUDA", "HIP", "ROCR"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def as_if_real(monkeypatch):
    """CUDA's devices do not say that they are emulated."""
    describe = CUDA.describe
    monkeypatch.setattr(CUDA, "describe", lambda device=None: replace(describe(device), emulated=False))


@pytest.fixture
def pynvml(monkeypatch):
    from stand_ins import pynvml_module

    module = pynvml_module()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture
def rocm(monkeypatch):
    from stand_ins import amdsmi_module

    module = amdsmi_module()
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module
