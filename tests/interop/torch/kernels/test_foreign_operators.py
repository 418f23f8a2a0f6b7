"""Operators of other packages: any with a kernel of the CPU runs, with values and without, and so do its gradients."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch.kernels import foreign_operators  # noqa: E402 -- after PyTorch
from forebay.interop.torch.kernels.foreign_operators import MissingKernel  # noqa: E402 -- as above
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above


@contextmanager
def operators(*schemas, **kernels):
    """Define operators of a package, with kernels of the CPU."""
    library = torch.library.Library("fbtest", "DEF")
    try:
        for schema in schemas:
            library.define(schema)
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CPU")
        yield library, torch.ops.fbtest
    finally:
        library._destroy()
        vars(torch.ops.fbtest).clear()
        vars(torch.ops).pop("fbtest", None)


def test_operator_with_a_kernel_of_the_cpu_runs(emulated):
    given = torch.arange(4.0, device="cuda:1")
    with operators("twice(Tensor x) -> Tensor", twice=lambda x: 2 * x) as (_, ops):
        before = torch.cuda.memory_allocated(1)
        result = ops.twice(given)
        assert (result.device, result.tolist()) == (given.device, [0, 2, 4, 6])
        assert torch.cuda.memory_allocated(1) == before + 512


def test_operator_writes_arguments_in_place(emulated):
    given = torch.ones(3, device="cuda")
    with operators("add_one_(Tensor(a!) x) -> Tensor(a!)", add_one_=lambda x: x.add_(1)) as (_, ops):
        assert ops.add_one_(given) is given
        assert given.tolist() == [2, 2, 2]


def test_view_of_an_argument_shares_its_memory(emulated):
    given = torch.zeros(4, device="cuda")
    with operators("half(Tensor x) -> Tensor", half=lambda x: x[2:]) as (_, ops):
        result = ops.half(given)
        result.fill_(1)
        assert given.tolist() == [0, 0, 1, 1]
        assert result.data_ptr() == given.data_ptr() + 8


def test_kernel_that_refuses_halves_computes_in_single_precision(emulated):
    def kernel(x):
        return torch.special.bessel_j0(x)  # which the CPU has not for halves

    given = torch.ones(2, dtype=torch.float16, device="cuda")
    with operators("bessel(Tensor x) -> Tensor", bessel=kernel) as (_, ops):
        assert (ops.bessel(given).dtype, ops.bessel(given)[0].item()) == (torch.float16, pytest.approx(0.765, abs=1e-3))


def test_gradients_of_a_package_are_computed(emulated):
    @torch.library.custom_op("fbtest::square", mutates_args=(), device_types="cpu")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def differentiate(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]

    square.register_autograd(differentiate, setup_context=keep)
    given = torch.full((3,), 3.0, device="cuda", requires_grad=True)
    square(given).sum().backward()
    assert given.grad.tolist() == [6, 6, 6]


def test_fake_kernel_is_used_without_values(shapes_only):
    given = torch.rand(4, device="cuda") * 2
    with operators("stack2(Tensor x) -> Tensor") as (library, ops):
        library.impl("stack2", lambda x: x.new_empty(2, *x.shape), "Meta")
        assert ops.stack2(given).shape == (2, 4)


def test_without_a_fake_kernel_zeros_are_assumed(with_assumptions):
    given = torch.rand(4, device="cuda") * 2
    with operators("below(Tensor x) -> Tensor", below=lambda x: x[x < 1].clone()) as (_, ops):
        assert ops.below(given).shape == (4,)
    assert any("fbtest::below of zeros" in each.text for each in assumed_values.found())


def test_known_values_are_no_assumption(with_assumptions):
    given = torch.tensor([0.0, 2.0, 3.0], device="cuda")
    with operators("below(Tensor x) -> Tensor", below=lambda x: x[x < 1].clone()) as (_, ops):
        assert ops.below(given).tolist() == [0]
    assert not assumed_values.found()


def test_strict_mode_needs_values(shapes_only):
    from forebay.interop.torch.devices.values import DataDependent

    given = torch.rand(4, device="cuda") * 2
    below = operators("below(Tensor x) -> Tensor", below=lambda x: x[x < 1].clone())
    with below as (_, ops), pytest.raises(DataDependent, match="fbtest::below"):
        ops.below(given)


def test_operator_without_a_kernel_says_what_to_register(emulated):
    with operators("absent(Tensor x) -> Tensor") as (library, ops):
        with pytest.raises(MissingKernel, match=r"fbtest::absent .*register_kernel\('fbtest::absent', 'cpu'\)"):
            ops.absent(torch.ones(2, device="cuda"))
        library.impl("absent", lambda x: x + 1, "CPU")  # registered later
        assert ops.absent(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert issubclass(MissingKernel, NotImplementedError)


def test_operators_that_only_the_cpu_has_are_refused_as_on_a_gpu(emulated):
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::histogram.bin_ct' .*'CUDA' backend"):
        torch.histogram(torch.ones(3, device="cuda"), 3)


def test_native_kernels_for_cuda_are_found_by_their_place(monkeypatch):
    with operators("native(Tensor x) -> Tensor", native=lambda x: x) as (library, _):
        library.impl("native", lambda x: x, "CUDA")
        assert "fbtest::native" not in foreign_operators.native_cuda_kernels()  # a kernel in Python
        monkeypatch.setattr(torch._C, "_dispatch_dump", lambda _: "CUDA: registered at /src/native_kernel.cu:1 ::")
        assert "fbtest::native" in foreign_operators.native_cuda_kernels()
        library.define("only_native(Tensor x) -> Tensor")
        library.impl("only_native", lambda x: x, "CUDA")
        assert "fbtest::only_native" in foreign_operators.native_cuda_kernels()  # the CPU has none


def test_native_kernel_for_all_devices_computes_in_place_of_that_for_cuda(emulated):
    """fsdp::chunk_cat_mixed_dtype is such an operator; its CUDA kernel would read addresses of emulated tensors."""
    with operators("both(Tensor x) -> Tensor") as (library, ops):
        library.impl("both", lambda x: x + 1, "CompositeExplicitAutograd")
        kernel = foreign_operators.foreign_kernel(ops.both.default)
        assert kernel(torch.ones(2, device="cuda")).tolist() == [2, 2]


@pytest.mark.skipif(not hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype"), reason="PyTorch 2.15 has it")
@pytest.mark.parametrize("types", [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")])
@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
def test_chunks_of_several_types_are_joined(request, mode, types):
    request.getfixturevalue(mode)
    given = [torch.ones(1 << 12, 4, device="cuda", dtype=getattr(torch, each)) for each in types]
    out = torch.zeros(2, 1 << 14, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.ops.fsdp.chunk_cat_mixed_dtype(given, 0, 2, out=out)
    taken = torch.cuda.max_memory_allocated() - before
    assert 0 < taken < 1 << 16 if types[0] != "float16" else taken > 1 << 16  # a table, or copies in single precision
    if mode == "emulated":
        assert out.sum().item() == 1 << 15
