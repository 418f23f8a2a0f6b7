"""Private names on other accelerators. The scenes private_names and kernel_settings have those of CUDA."""

from __future__ import annotations

import forebay
from forebay import _C


def test_allocator_is_initialized_by_the_first_use_of_the_accelerator(clean):
    with forebay.emulate("mps", profile="apple_m3_max"):
        assert not _C._accelerator_isAllocatorInitialized()
        forebay.zeros(1, device="mps")
        assert _C._accelerator_isAllocatorInitialized()


def test_allocator_is_not_initialized_without_an_accelerator(clean, monkeypatch):
    monkeypatch.setattr(_C.accelerator, "current_accelerator", lambda: None)
    forebay.zeros(1)
    assert not _C._accelerator_isAllocatorInitialized()
