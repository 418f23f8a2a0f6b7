"""Half precision with values: operators that compute in single precision, in the memory of those that do not."""

from __future__ import annotations

import time
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional as F  # noqa: E402, N812 -- PyTorch's usual name, after PyTorch

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.kernels import wide_types  # noqa: E402 -- as above


def half(*shape, dtype=torch.float16):
    return torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape).to(dtype).cuda()


CALLS = {
    "softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: torch.log_softmax(x, -1, dtype=torch.float32),
    "avg_pool3d": lambda x: F.avg_pool3d(x.view(1, 1, 4, 16, 32), 2),
    "antialiased resize": lambda x: F.interpolate(x.view(1, 1, 64, 32), size=(20, 20), mode="bicubic", antialias=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "conv2d": lambda x: F.conv2d(x.view(1, 8, 16, 16), x.view(8, 8, 32)[:, :, :9].reshape(8, 8, 3, 3), padding=1),
    "conv2d channels last": lambda x: F.conv2d(
        x.view(1, 8, 16, 16).to(memory_format=torch.channels_last), x.view(8, 8, 32)[:, :, :9].reshape(8, 8, 3, 3)
    ),
    "matmul": lambda x: x @ x.t(),
    "bmm": lambda x: x.view(4, 16, 32) @ x.view(4, 32, 16),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 32, 32)] * 3, is_causal=True),
    "group_norm": lambda x: F.group_norm(x.view(2, 8, 128), 4),
    "norm": lambda x: x.norm(dim=1),
    "fold": lambda x: F.fold(x.view(1, 32, 64)[:, :16, :9], (4, 4), 2).float(),
}


def measure(mode, call, dtype):
    with forebay.emulate("cuda", profile="h100"), patch(mode), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = half(64, 32, dtype=dtype).requires_grad_()
        result = call(given)
        result.sum().backward()
        layouts = [(each.dtype, each.shape, each.stride()) for each in (result, given.grad)]
        return layouts, torch.cuda.max_memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_memory_of_halves_does_not_depend_on_the_mode(name, dtype):
    if name == "rfft" and dtype == torch.bfloat16:
        pytest.skip("PyTorch has no FFT of bfloat16")
    assert measure("compute", CALLS[name], dtype) == measure("strict", CALLS[name], dtype)


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_softmax_of_halves_returns_single_precision_and_gradients_in_halves(emulated, function):
    given = half(4, 8).requires_grad_()
    result = function(given, -1, dtype=torch.float32)
    result.square().sum().backward()
    wide = given.detach().float().cpu().requires_grad_()
    function(wide, -1).square().sum().backward()
    assert (result.dtype, given.grad.dtype) == (torch.float32, torch.float16)
    torch.testing.assert_close(given.grad.cpu(), wide.grad.half())


def test_written_halves_are_rounded_in_place(emulated):
    given = half(2, 3, 4).to(torch.complex32)
    expected = given.cpu().to(torch.complex64).sin().to(torch.complex32)
    view = given.transpose(0, 2)
    assert view.sin_() is view
    torch.testing.assert_close(torch.view_as_real(given.cpu()), torch.view_as_real(expected))


def test_out_of_another_size_is_resized(emulated):
    given, out = half(1, 1, 4, 4, 4), torch.empty(0, dtype=torch.float16, device="cuda")
    assert torch._C._nn.avg_pool3d(given, 2, out=out) is out
    assert out.shape == (1, 1, 2, 2, 2)
    torch.testing.assert_close(out.cpu(), F.avg_pool3d(given.float(), 2).half().cpu())


def test_results_are_rounded_once(emulated):
    one, other = (torch.randn(8, 300).half().cuda() for _ in range(2))
    expected = (one.float().cpu() @ other.float().cpu().t()).half()
    torch.testing.assert_close((one @ other.t()).cpu(), expected, rtol=1e-3, atol=1e-4)


def test_mixed_types_are_refused_as_on_a_gpu(emulated):
    with pytest.raises(RuntimeError, match="same dtype"):
        half(3, 3) @ half(3, 3).float()
    with pytest.raises(RuntimeError, match="should be the same"):
        F.conv2d(half(1, 1, 4, 4), half(1, 1, 2, 2).float())


def test_types_that_cuda_refuses_are_refused(emulated):
    for call in (torch.linalg.cholesky, torch.linalg.inv, torch.special.bessel_j0):
        with pytest.raises(RuntimeError, match=r"Half|Low precision"):
            call(torch.eye(3, dtype=torch.float16, device="cuda"))


def test_errors_of_the_arguments_are_those_of_the_operator(emulated):
    with pytest.raises(RuntimeError, match=r"positive length|non-zero size"):
        F.avg_pool3d(half(1, 1, 4, 0, 4), 2)


def test_operators_that_the_cpu_computes_are_left_to_it(emulated, monkeypatch):
    monkeypatch.setattr(wide_types, "_in_wide_types", None)
    given = half(4, 8)
    assert F.gelu(given + given.exp()).dtype == torch.float16


def test_products_of_float16_take_about_as_long_as_those_of_float32(emulated):
    def seconds(dtype):
        given, weight = (torch.randn(shape, dtype=dtype, device="cuda") for shape in ((2, 64, 28, 28), (64, 64, 3, 3)))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            F.conv2d(given, weight, padding=1)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(torch.float16) < 20 * seconds(torch.float32)  # 190 without copies; much on a busy machine


def test_results_have_the_type_that_the_program_asks_for(emulated):
    given = torch.ones(4, 5, dtype=torch.float16, device="cuda")
    assert torch.linalg.vector_norm(given, dim=1, dtype=torch.float32).dtype == torch.float32
    assert given.softmax(1, dtype=torch.float32).dtype == torch.float32
    assert given.sum(1, dtype=torch.float32).dtype == torch.float32
    assert torch.linalg.vector_norm(given, dim=1).dtype == torch.float16
