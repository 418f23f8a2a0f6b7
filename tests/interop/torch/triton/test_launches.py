"""Launches of Triton's kernels without values, and what is known afterwards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="triton is no requirement of the CPU builds of PyTorch")

from support import triton_kernels as kernels  # noqa: E402 -- the tests need Triton, which is looked for first

import forebay  # noqa: E402 -- as above
from forebay.interop.torch.devices.emulated_memory import memory_of  # noqa: E402 -- as above
from forebay.interop.torch.devices.patching import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above
from forebay.interop.torch.triton.launches import without_values  # noqa: E402 -- as above


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as by default, of which Triton 3.9 warns


def test_only_what_a_kernel_writes_becomes_unknown():
    with forebay.emulate("cuda", profile="h100"), patch("strict"):
        x, y, out = (torch.zeros(64, device="cuda") for _ in range(3))
        kernels.add[(1,)](x, y, out, 64, block=64)
        assert float(x.sum() + y.sum()) == 0
        with pytest.raises(DataDependent):
            float(out.sum())
        assert memory_of(out).known is None


def test_kernel_whose_arguments_are_not_understood_makes_all_of_them_unknown():
    with forebay.emulate("cuda", profile="h100"), patch("strict"):
        x, y, out = (torch.zeros(32, device="cuda") for _ in range(3))
        kernels.scaled[(1,)]((x, y), out, 2.0, n=32)
        for each in (x, out):
            with pytest.raises(DataDependent):
                float(each.sum())


def test_too_large_a_kernel_raises_as_on_the_card():
    x, out = torch.Size([128, 512]), torch.Size([128, 128])
    for profile, fits in (("rtx-4090", False), ("h100", True)):
        with forebay.emulate("cuda", profile=profile), patch("shapes"):
            args = [torch.empty(each, device="cuda", dtype=torch.float16) for each in (x, out)]
            if fits:
                kernels.large[(1,)](*args, n=128, k=512)
            else:
                with pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory, Required: "):
                    kernels.large[(1,)](*args, n=128, k=512)


def test_values_from_elsewhere_leave_the_kernel_unexecuted():
    with forebay.emulate("cuda", profile="h100"), patch("compute"):
        x, out = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
        with without_values():
            kernels.add_unmasked[(1,)](x, out, block=64)
        assert not out.any()
        kernels.add_unmasked[(1,)](x, out, block=64)
        assert out.all()


def test_hooks_warmup_and_grids_are_tritons():
    calls = []
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        x = torch.zeros(64, device="cuda")
        compiled = kernels.add_unmasked.warmup(x, x, block=64, grid=(1,))
        assert compiled.metadata.num_warps == 4
        compiled._init_handles()
        assert compiled.n_regs > 0
        assert compiled.n_spills == 0
        kernels.add_unmasked.add_pre_run_hook(lambda *_, **keywords: calls.append(keywords["block"]))
        try:
            kernels.add_unmasked[lambda meta: (64 // meta["block"],)](x, x, block=32)
        finally:
            kernels.add_unmasked.pre_run_hooks.clear()
        kernels.add_unmasked.run(x, x, block=32, grid=(2,), warmup=False)
        with pytest.raises(KeyError, match="unrecognised"):
            kernels.add_unmasked[(1,)](x, x, block=32, blocks=3)
    assert calls == [32]


def test_scratch_memory_comes_from_the_programs_allocator():
    asked = []

    def allocate(size, alignment, stream):
        asked.append((size, alignment))
        return torch.empty(size, device="cuda", dtype=torch.int8)

    with forebay.emulate("cuda", profile="h100"), patch("compute"):
        x, out = torch.ones(32, 32, device="cuda"), torch.zeros(32, 32, device="cuda")
        triton.set_allocator(allocate)
        kernels.made_descriptor[(4,)](x, out, n=16)
        assert torch.equal(out, x * 2)
    ((size, alignment),) = asked
    assert size % (4 * alignment) == 0


def test_pytorch_finds_triton_while_cards_are_emulated_only():
    from torch.utils._triton import has_triton

    before = has_triton()
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        assert has_triton()
    assert has_triton() == before
