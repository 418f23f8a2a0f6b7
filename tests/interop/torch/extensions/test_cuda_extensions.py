"""CUDA extensions that a program would compile are refused at once; those of C++ are built."""

from __future__ import annotations

import importlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

import forebay  # noqa: E402 -- after PyTorch, without which the file is skipped
from forebay.errors import Unsupported  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

SOURCE = "torch::Tensor run(torch::Tensor x) { return x; }"


@pytest.fixture
def built(monkeypatch):
    """Replace the steps that call compilers; returns the names of the extensions that were built."""
    from torch.utils import cpp_extension

    found = []
    monkeypatch.setattr(
        cpp_extension, "_write_ninja_file_and_build_library", lambda **given: found.append(given["name"])
    )
    monkeypatch.setattr(cpp_extension, "_import_module_from_library", lambda name, *_: name)
    return found


@pytest.mark.parametrize("is_imported_before", [False, True])
def test_cuda_extension_is_refused_before_it_is_compiled(built, tmp_path, monkeypatch, is_imported_before):
    module = sys.modules["torch.utils.cpp_extension"]
    own = module._jit_compile
    if not is_imported_before:
        monkeypatch.delitem(sys.modules, module.__name__)
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        used = importlib.import_module(module.__name__)
        for options in ({"with_cuda": True, "sources": ["kernel.cpp"]}, {"sources": "kernel.cu"}):
            with pytest.raises(
                Unsupported, match="the CUDA extension fused cannot be built or loaded here: it needs a GPU"
            ):
                used.load("fused", build_directory=str(tmp_path), **options)
        with pytest.raises(RuntimeError, match="the CUDA extension inline cannot"):
            used.load_inline("inline", SOURCE, SOURCE, functions=["run"], build_directory=str(tmp_path))
        assert not built
    if is_imported_before:
        assert module._jit_compile is own


def test_extension_of_cpp_is_built(built, tmp_path):
    from torch.utils import cpp_extension

    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        loaded = cpp_extension.load_inline("plain", SOURCE, functions=["run"], build_directory=str(tmp_path))
    assert (loaded, built) == ("plain", ["plain"])
