"""Triton's choice of configurations on emulated cards."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="triton is no requirement of the CPU builds of PyTorch")
pytest.importorskip("triton.testing")

from support import triton_kernels as kernels  # noqa: E402 -- the tests need Triton, which is looked for first

import forebay  # noqa: E402 -- as above
from forebay.errors import ForebayWarning  # noqa: E402 -- as above
from forebay.interop.torch.devices.patching import patch  # noqa: E402 -- as above
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

CLEARED = 256 << 20


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as by default, of which Triton 3.9 warns


def tuned(function, configurations, **options):
    return triton.autotune([triton.Config(each) for each in configurations], **options)(function)


def test_first_configuration_that_fits_is_taken_said_and_executed_once():
    kernel = tuned(kernels.large, [{"k": 512}, {"k": 64}, {"k": 32}], key=["n"])
    with forebay.emulate("cuda", profile="rtx-4090"), patch("compute"):
        x, out = torch.ones(128 * 64, device="cuda", dtype=torch.float16), torch.zeros(128, 128, device="cuda")
        kernel[(1,)](x, out, n=128)
        assert kernel.best_config.kwargs == {"k": 64}
        assert torch.equal(out, torch.full_like(out, 64))
        (assumption,) = assumed_values.found()
        assert "large of Triton takes its first configuration that fits the card (k: 64" in assumption.text
        assert torch.cuda.max_memory_allocated() == x.nbytes + out.nbytes + CLEARED


def test_what_measurements_restore_is_allocated_beside_the_cleared_memory():
    kernel = tuned(kernels.add_unmasked, [{"block": 64}, {"block": 32}], key=[], restore_value=["out"])
    with forebay.emulate("cuda", profile="h100"), patch("compute"):
        x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
        kernel[lambda meta: (64 // meta["block"],)](x, out)
        assert torch.equal(out, x + 1)
        assert torch.cuda.max_memory_allocated() == 3 * 512 + CLEARED


def test_heuristics_decide():
    kernel = triton.heuristics({"block": lambda given: triton.next_power_of_2(given["n"])})(kernels.add)
    with forebay.emulate("cuda", profile="h100"), patch("compute"):
        x, out = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
        kernel[(1,)](x, x, out, 100)
        assert torch.equal(out, x + x)


def test_benchmarks_return_a_stated_time():
    calls = []
    with forebay.emulate("cuda", profile="h100"), patch("shapes"):
        with pytest.warns(ForebayWarning, match=r"do_bench\(\) measures nothing on emulated devices: it returns 1 ms"):
            assert triton.testing.do_bench(lambda: calls.append(1)) == 1.0
        assert triton.testing.do_bench(lambda: calls.append(2), quantiles=[0.5, 0.2]) == [1.0, 1.0]
    assert calls == [1, 2]


def test_choice_is_forgotten_with_the_card_and_keeps_no_memory():
    kernel = tuned(kernels.large, [{"k": 512}, {"k": 64}], key=["n"])
    for profile, expected in (("h100", 512), ("rtx-4090", 64)):
        with forebay.emulate("cuda", profile=profile), patch("shapes"):
            arguments = [
                torch.empty(128 * 512, device="cuda", dtype=torch.float16),
                torch.empty(128, 128, device="cuda"),
            ]
            kernel[(1,)](*arguments, n=128)
            assert kernel.best_config.kwargs == {"k": expected}
            del arguments
            gc.collect()  # Triton's errors for configurations that do not fit have cycles
            assert not torch.cuda.memory_allocated()
    assert not kernel.cache
