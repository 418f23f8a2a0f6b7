"""Values of Triton's kernels on emulated devices, which equal those of PyTorch's operators."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="triton is no requirement of the CPU builds of PyTorch")

from support import triton_kernels as kernels  # noqa: E402 -- the tests need Triton, which is looked for first
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.errors import ForebayWarning, Unsupported  # noqa: E402 -- as above
from forebay.interop.torch.devices.patching import patch  # noqa: E402 -- as above


@pytest.fixture(scope="module", autouse=True)
def _emulated(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # as by default, of which Triton 3.9 warns
        with forebay.emulate("cuda", profile="h100"), patch("compute"):
            yield


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to("cuda", dtype)


def test_kernel_that_was_decorated_before_computes_and_allocates_nothing():
    x, y, out = draw(1000), draw(1000), torch.zeros(1000, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    kernels.add[(4,)](x, y, out, 1000, block=256)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(out, x + y)


def test_kernel_can_be_compiled_after_it_was_interpreted():
    x, out = draw(64), torch.zeros(64, device="cuda")
    kernels.add_unmasked[(2,)](x, out, block=32)
    kernels.add_unmasked[(4,)](x, out, block=16)  # compiled now
    assert torch.equal(out, x + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_softmax_and_product_equal_those_of_pytorch(dtype):
    x, out = draw(5, 50, dtype=dtype), torch.zeros(5, 50, device="cuda", dtype=dtype)
    kernels.softmax_rows[(5,)](x, out, 50, block=64)
    assert torch.allclose(out.float(), x.float().softmax(1), atol=1e-2 if dtype.itemsize == 2 else 1e-6)
    a, b, made = draw(16, 16, dtype=dtype), draw(16, 16, dtype=dtype), torch.zeros(16, 16, device="cuda", dtype=dtype)
    kernels.product[(1,)](a, b, made, n=16)
    tolerance = 1e-2 if dtype.itemsize == 2 else 1e-5
    assert torch.allclose(made.float(), a.float() @ b.float(), rtol=tolerance, atol=tolerance)


def test_bfloat16_is_computed_as_numbers_and_rounded_to_even():
    x, y = draw(64, dtype=torch.bfloat16), draw(8, 8, dtype=torch.bfloat16).view(-1)
    out = torch.zeros_like(x)
    kernels.add[(1,)](x, y, out, 64, block=64)
    assert torch.equal(out, x + y)


def test_functions_closures_globals_and_constants_are_those_of_the_kernel():
    x, out = draw(64), torch.zeros(1, device="cuda")
    kernels.nested[(1,)](x, out, block=64)
    assert torch.allclose(out, (x * x).sum() + 3)
    for factor in (2.0, 5.0):
        made = torch.zeros(64, device="cuda")
        kernels.scaled_by(factor)[(1,)](x, made, n=64)
        assert torch.equal(made, x * factor)


def test_reductions_and_scans_with_functions_of_the_kernel():
    x, out = draw(64), torch.zeros(2, device="cuda")
    kernels.variance[(1,)](x, out, n=64)
    assert torch.allclose(out, torch.stack([x.var(correction=0), x.mean()]), atol=1e-6)
    a, b, made = draw(32).sigmoid(), draw(4, 8).view(-1), torch.zeros(32, device="cuda")
    kernels.recurrence[(1,)](a, b, made, n=32)
    state, expected = torch.zeros(()), []
    for decay, new in zip(a.cpu(), b.cpu(), strict=True):
        state = state * decay + new
        expected.append(state)
    assert torch.allclose(made.cpu(), torch.stack(expected), atol=1e-6)


def test_device_library_and_atomic_operations():
    x, out = draw(64), torch.zeros(64, device="cuda")
    kernels.mathematics[(1,)](x, out, n=64)
    assert torch.allclose(out, x.tanh() + x.abs().log1p() + (x * x + 1).rsqrt(), atol=1e-6)
    index, counts = torch.arange(100, device="cuda") % 7, torch.zeros(7, device="cuda", dtype=torch.int32)
    kernels.count[(4,)](index, counts, 100, block=32)
    assert torch.equal(counts.long(), index.bincount())


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_pointers_of_all_kinds_reach_the_values():
    one, other = draw(32), draw(2, 16).view(-1)
    table, out = torch.tensor([one.data_ptr(), other.data_ptr()], device="cuda"), torch.zeros(64, device="cuda")
    kernels.through_addresses[(2,)](table, out, n=32)
    assert torch.equal(out, torch.cat([one, other]))
    made = torch.zeros(32, device="cuda")
    kernels.scaled[(1,)]((one, other), made, 0.5, n=32)
    assert torch.equal(made, (one + other) * 0.5)
    x, doubled = draw(16, 16), torch.zeros(16, 16, device="cuda")
    descriptors = [TensorDescriptor.from_tensor(each, [16, 16]) for each in (x, doubled)]
    kernels.described[(1,)](*descriptors, n=16)
    assert torch.equal(doubled, x * 2)
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):  # which has no pointers to blocks any more
        padded = torch.ones(16, 16, device="cuda")
        kernels.with_blocks[(1,)](x[:10, :10].contiguous(), padded, 10, 10, n=16)
        assert torch.equal(padded, torch.nn.functional.pad(x[:10, :10], (0, 6, 0, 6)))
    view = one[7:]
    kernels.add_unmasked[(1,)](view, made, block=16)  # an address inside a block
    assert torch.equal(made[:16], view[:16] + 1)


def test_access_outside_a_block_is_reported_and_does_nothing():
    x, beside = draw(128), torch.zeros(128, device="cuda")
    out = torch.zeros(128, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernels.add_unmasked[(5,)](x, out, block=64)
        kernels.add_unmasked[(5,)](x, out, block=64)
    texts = sorted(str(each.message) for each in caught if each.category is ForebayWarning)
    assert [text.partition(": ")[0] for text in texts] == [
        "the kernel add_unmasked reads outside a tensor", "the kernel add_unmasked writes outside a tensor",
    ]  # fmt: skip
    assert "byte 512 of x, which has 512, in program (2, 0, 0) at triton_kernels.py:" in texts[0]
    assert torch.equal(out, x + 1)
    assert not beside.any()


def test_captured_launch_runs_in_each_replay_only():
    x, out = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.add_unmasked[(1,)](x, out, block=64)
    assert not out.any()
    x.fill_(4)
    graph.replay()
    assert torch.equal(out, x + 1)


def test_what_the_interpreter_lacks_is_named_with_the_kernel_and_the_line():
    x = draw(32)
    with pytest.raises(
        Unsupported, match=r"the kernel with_assembly \(.*triton_kernels.py:\d+\) cannot be computed: .*add.f32"
    ):
        kernels.with_assembly[(1,)](x, x, n=32)


def test_tensor_of_the_host_is_refused_as_on_a_gpu():
    x = torch.zeros(32)
    with pytest.raises(ValueError, match=r"Pointer argument \(at 0\) cannot be accessed from Triton \(cpu tensor\?\)"):
        kernels.add_unmasked[(1,)](x, draw(32), block=32)
    pinned, out = x.pin_memory(), torch.zeros(32, device="cuda")
    kernels.add_unmasked[(1,)](pinned, out, block=32)
    assert torch.equal(out.cpu(), x + 1)
