"""Functions of bitsandbytes' CUDA library: layers and optimizers have the values of its operators for the CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes for this system")

from support.quantized_layers import ROWS, forward_and_backward, layer_of_4_bits  # noqa: E402 -- needs torch
from torch import nn  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

OPTIMIZERS = {
    "Adagrad": {},
    "Adam": {},
    "AdamW": {},
    "AdEMAMix": {},
    "Lion": {},
    "RMSprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}


def with_the_same_codes(layer):
    """Return what the CPU computes with the weight of a layer, dequantized by bitsandbytes' operators for it."""
    state = layer.weight.quant_state
    largest = state.absmax.cpu()
    if state.nested:
        nested = state.state2
        largest = torch.ops.bitsandbytes.dequantize_blockwise(
            largest, nested.absmax.cpu(), nested.code.cpu(), nested.blocksize, torch.float32
        )
        largest = largest + state.offset.cpu()
    weight = torch.ops.bitsandbytes.dequantize_4bit(
        layer.weight.data.cpu(), largest, state.blocksize, state.quant_type, state.shape, layer.compute_dtype
    )

    def forward(given):
        cast = given.to(layer.compute_dtype)
        return nn.functional.linear(cast, weight, layer.bias.detach().cpu().to(layer.compute_dtype)).to(given.dtype)

    return forward


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_layers_of_4_bits_are_those_of_the_cpu(emulated, kind, dtype, nested, rows):
    layer = layer_of_4_bits("cuda", kind, dtype, nested)
    found = forward_and_backward(layer, "cuda", rows)
    expected = forward_and_backward(with_the_same_codes(layer), "cpu", rows)
    is_half = dtype != torch.float32  # products are rounded once, those of the CPU after each part
    limits = {"rtol": torch.finfo(dtype).eps, "atol": 1e-5} if is_half else {}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, **limits)


def test_weights_are_quantized_as_on_the_cpu(emulated):
    host, device = layer_of_4_bits("cpu"), layer_of_4_bits("cuda")
    assert torch.equal(device.weight.data.cpu(), host.weight.data)
    assert torch.equal(device.weight.quant_state.absmax.cpu(), host.weight.quant_state.absmax)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product_with_a_vector(emulated, dtype):
    layer, given = layer_of_4_bits("cuda", dtype=dtype), torch.randn(1, 128).to(dtype)
    state = layer.weight.quant_state
    found = bitsandbytes.functional.gemv_4bit(given.cuda(), layer.weight.t(), state=state) + layer.bias
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]  # the kernel rounds each product
    torch.testing.assert_close(
        found.cpu(), with_the_same_codes(layer)(given), rtol=0, atol=tolerance, check_dtype=False
    )


@pytest.mark.parametrize(
    ("shape", "storage"),
    [((3, 5), torch.uint8), ((33, 70), torch.uint8), ((64, 64), torch.bfloat16), ((64, 64), torch.float32)],
    ids=str,
)
def test_tensors_are_restored_from_4_bits(emulated, shape, storage):
    given = torch.randn(shape, device="cuda")
    codes, state = bitsandbytes.functional.quantize_4bit(given, quant_type="nf4", quant_storage=storage)
    restored = bitsandbytes.functional.dequantize_4bit(codes, state)
    assert (restored - given).abs().max() <= 0.16 * given.abs().max()  # half of the largest distance of levels


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_layers_of_8_bits_are_those_of_the_cpu(emulated, threshold):
    host = bitsandbytes.nn.Linear8bitLt(128, 192, has_fp16_weights=False, threshold=threshold).eval()
    device = copy.deepcopy(host).to("cuda")
    host = host.to("cpu")
    given = torch.randn(7, 128).half()
    before = given.clone()
    with torch.no_grad():
        expected, found = host(given), device(given.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0.002)
    assert torch.equal(given, before)


def test_layer_of_8_bits_is_trained(emulated):
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear8bitLt(64, 64, bias=False, has_fp16_weights=False)
    weight = layer.weight.data.clone()
    given = torch.randn(9, 64, dtype=torch.float16)
    on_device = given.cuda().requires_grad_()
    layer.to("cuda")(on_device).float().sum().backward()
    expected = weight.sum(dim=0).expand(9, 64)
    torch.testing.assert_close(on_device.grad.float().cpu(), expected, rtol=0.02, atol=0.02)


def train(place, name, **options):
    torch.manual_seed(3)
    parameter = nn.Parameter(torch.randn(ROWS, 256).to(place))
    optimizer = getattr(bitsandbytes.optim, name)([parameter], **options)
    for _ in range(3):
        parameter.grad = torch.randn(ROWS, 256).to(place)
        optimizer.step()
    return parameter, optimizer.state[parameter]


def compare(found, expected, bits, most):
    """Compare parameters. bitsandbytes' CPU library does not find the nearest level for one of 600 numbers."""
    difference = (found.detach().cpu() - expected.detach()).abs()
    if bits == 8:
        assert (difference > 1e-5).float().mean() < 0.05
        assert difference.max() < most
    else:
        assert difference.max() < 2e-6


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_the_cpu(emulated, name, bits):
    options = {**OPTIMIZERS[name], "optim_bits": bits}
    (found, states), (expected, _) = train("cuda", name, **options), train("cpu", name, **options)
    compare(found, expected, bits, 0.1 if name in ("SGD", "RMSprop") else 0.01)
    assert states["state1"].dtype == (torch.uint8 if bits == 8 else torch.float32)
    assert states["state1"].is_cuda


def train_on_new_device(name, **options):
    """Return the parameter, a state, and the peak of a training."""
    with forebay.emulate("cuda", profile="h100"), patch():
        parameter, states = train("cuda", name, **options)
        return parameter.detach().cpu(), states["state1"].is_cuda, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("name", ["PagedAdam8bit", "PagedAdamW32bit", "PagedAdEMAMix8bit", "PagedLion8bit"])
def test_paged_states_are_in_managed_memory(name):
    plain = name.removeprefix("Paged").removesuffix("8bit").removesuffix("32bit")
    bits = 8 if "8bit" in name else 32
    expected, _, peak_of_plain = train_on_new_device(plain, optim_bits=bits)
    found, is_on_device, peak = train_on_new_device(name)
    assert torch.equal(found, expected)
    assert not is_on_device
    assert peak_of_plain - peak > ROWS * 256 * bits // 8 * 0.9


@pytest.mark.parametrize("mode", ["compute", "shapes"])
def test_wrong_addresses_are_refused(mode):
    with forebay.emulate("cuda", profile="a100"), patch(mode):
        codes, state = bitsandbytes.functional.quantize_4bit(torch.ones(64, 64, device="cuda"))
        whole = state.absmax
        for state.absmax in (torch.ones(64), whole[:10].clone()):  # on the host, and too short
            with pytest.raises(forebay.AcceleratorError, match="an illegal memory access was encountered"):
                bitsandbytes.functional.dequantize_4bit(codes, state)


def test_other_functions_are_refused_with_their_name(emulated):
    one = torch.ones(8, 8, dtype=torch.int8, device="cuda")
    with pytest.warns(FutureWarning), pytest.raises(forebay.Unsupported, match="cigemm of bitsandbytes' CUDA library"):
        bitsandbytes.functional.igemm(one, one)


def test_threshold_is_compared_in_half_precision(emulated):
    given = torch.tensor([[0.1, 0.05]], dtype=torch.float16, device="cuda")  # 0.09997559
    codes, largest, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(given, 0.1)
    assert largest.item() == given[0, 1].item()
    codes, largest, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(given, 0.2)
    assert (codes.tolist(), largest.item()) == ([[127, 64]], given[0, 0].item())


def test_views_are_found_while_tensors_are_freed(emulated):
    """Cycles with tensors of the device are collected while a library looks for the tensor of an address."""
    kept = [torch.zeros(1, device="cuda") for _ in range(3000)]
    values = torch.arange(4096.0, device="cuda")
    for _ in range(100):
        cycle = [torch.zeros(1, device="cuda")]
        cycle.append(cycle)
        part = values[64:128]
        _, state = bitsandbytes.functional.quantize_blockwise(part, blocksize=64)
    assert state.absmax.item() == 127
    assert len(kept) == 3000
