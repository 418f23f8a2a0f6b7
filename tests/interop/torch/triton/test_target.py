"""Triton's driver for emulated cards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="triton is no requirement of the CPU builds of PyTorch")

from triton import language as tl  # noqa: E402 -- as below

import forebay  # noqa: E402 -- the tests need Triton, which is looked for first
from forebay.interop.torch.devices.patching import patch  # noqa: E402 -- as above
from forebay.interop.torch.triton import target  # noqa: E402 -- as above


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def product(x, out, n: tl.constexpr, k: tl.constexpr):
    rows, columns = tl.arange(0, n), tl.arange(0, k)
    left = tl.load(x + rows[:, None] * k + columns[None, :])
    right = tl.load(x + columns[:, None] * n + rows[None, :])
    tl.store(out + rows[:, None] * n + rows[None, :], tl.dot(left, right).to(tl.float16))


tuned = triton.autotune([triton.Config({"block": 256}), triton.Config({"block": 512})], key=["n"])(add)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as by default, of which Triton 3.9 warns


def launches(profile, run):
    """Return the launches of a function on an emulated card, and the requests of the allocator during it."""
    seen = []
    with forebay.emulate("cuda", profile=profile), patch("shapes"), target.observed(seen.append):
        before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        run()
        return seen, torch.cuda.memory_stats().get("allocation.all.allocated", 0) - before


def test_launch_is_handed_over_with_its_arguments_and_allocates_nothing():
    def run():
        x = torch.ones(1000, device="cuda")
        add[(4,)](x, x, x, 1000, block=256)
        add[(0,)](x, x, x, 1000, block=256)  # no program: nothing is launched

    (seen,), requests = launches("h100", run)
    assert requests == 1
    assert seen.source.fn is add
    assert (seen.metadata.name, seen.grid, seen.metadata.target.arch) == ("add", (4, 1, 1), 90)
    assert seen.arguments[3:] == (1000, 256)
    assert not add.device_caches


def test_kernel_is_compiled_anew_for_each_card_and_checked_against_its_shared_memory():
    def run():
        x = torch.ones(256, 256, device="cuda", dtype=torch.float16)
        product[(1,)](x, x, n=64, k=512)

    (seen,), _ = launches("h100", run)
    assert (seen.metadata.target.arch, seen.metadata.shared) == (90, 131072)
    limit = r"shared memory, Required: 131072, Hardware limit: 101376"
    with pytest.raises(triton.runtime.errors.OutOfResources, match=limit):
        launches("rtx_4090", run)


def test_autotuner_takes_the_first_configuration_and_launches_once():
    def run():
        x = torch.ones(1000, device="cuda")
        tuned[lambda meta: (triton.cdiv(1000, meta["block"]),)](x, x, x, 1000)

    (seen,), _ = launches("a100", run)
    assert (seen.grid, seen.metadata.target.arch) == ((4, 1, 1), 80)


def test_driver_is_restored():
    backend, active = triton.backends.backends["nvidia"], triton.runtime.driver._active
    launches("h100", lambda: None)
    assert triton.backends.backends["nvidia"] is backend
    assert triton.runtime.driver._active is active
