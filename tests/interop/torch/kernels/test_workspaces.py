"""Workspaces of cuBLAS: their size on each card, their lifetime, and the settings of PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import workspaces  # noqa: E402 -- as above


@pytest.fixture(autouse=True)
def restored():
    yield
    workspaces.set_lifetime(None)


def taken_by_a_product(profile, lifetime):
    """Return the bytes that live after a product, and the peak, without those of the matrices."""
    workspaces.set_lifetime(lifetime)
    with forebay.emulate("cuda", profile=profile), patch("shapes"):
        one = torch.empty(64, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        product = one @ one
        size = product.numel() * product.element_size()
        kept = torch.cuda.memory_allocated() - before - size
        return kept, torch.cuda.max_memory_allocated() - before - size


@pytest.mark.parametrize(("profile", "size"), [("h100", 32 << 20), ("a100", 8_519_680), ("t4", 8_519_680)])
def test_size_depends_on_the_card(profile, size):
    assert taken_by_a_product(profile, "process") == (size, size)


def test_workspace_of_a_call_is_freed():
    assert taken_by_a_product("h100", "call") == (0, 32 << 20)


def test_setting_determines_the_size(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert taken_by_a_product("h100", "process")[0] == 2 * 4096 * 1024 + 8 * 16 * 1024
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "none")
    assert taken_by_a_product("h100", "process")[0] == 32 << 20


def test_setting_keeps_workspaces(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    assert taken_by_a_product("h100", None)[0] == 32 << 20


def test_each_stream_and_pass_has_its_own():
    workspaces.set_lifetime("process")
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        one = torch.empty(8, 8, device="cuda", requires_grad=True)
        product = one @ one
        with torch.cuda.stream(torch.cuda.Stream()):
            one @ one
        assert torch.cuda.memory_allocated() >= 2 * (32 << 20)
        product.sum().backward()
        assert torch.cuda.memory_allocated() >= 3 * (32 << 20)
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() < 1 << 20
