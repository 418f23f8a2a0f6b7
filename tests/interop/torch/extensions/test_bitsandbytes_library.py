"""bitsandbytes on emulated devices: values of its CPU operators, and the allocations of its code for CUDA."""

from __future__ import annotations

import copy
import gc
import logging
import os
import subprocess
import sys
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes for this system")

from torch import nn  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above

OPTIMIZERS = {
    "Adagrad": {},
    "Adam": {},
    "AdamW": {},
    "AdEMAMix": {},
    "Lion": {},
    "RMSprop": {},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}
ROWS = 400  # of a parameter of more than 100,000 elements: bitsandbytes pages the states of such only


def layer_of_4_bits(place, kind="nf4", dtype=torch.float32, nested=False, rows=192, columns=128):
    options = {"compute_dtype": dtype, "quant_type": kind, "compress_statistics": nested}
    layer = bitsandbytes.nn.Linear4bit(columns, rows, **options)
    generator = torch.Generator().manual_seed(1)
    layer.load_state_dict(
        {"weight": torch.randn(rows, columns, generator=generator), "bias": torch.randn(rows, generator=generator)}
    )
    return layer.to(place)


def forward_and_backward(layer, place, rows):
    given = torch.randn(rows, 128, generator=torch.Generator().manual_seed(2)).to(place).requires_grad_()
    result = layer(given)
    result.sum().backward()
    return result.detach(), given.grad


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


def memory():
    statistics = torch.cuda.memory_stats()
    return statistics["allocated_bytes.all.peak"], statistics["allocation.all.allocated"]


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_layers_of_4_bits_are_those_of_the_cpu(emulated, kind, dtype, nested, rows):
    layer = layer_of_4_bits("cuda", kind, dtype, nested)
    found = forward_and_backward(layer, "cuda", rows)
    expected = forward_and_backward(with_the_same_codes(layer), "cpu", rows)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


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


def program():
    for kind, nested, rows in (("nf4", False, 7), ("fp4", True, 300)):
        forward_and_backward(layer_of_4_bits("cuda", kind, torch.bfloat16, nested), "cuda", rows)
    with torch.no_grad():
        bitsandbytes.nn.Linear8bitLt(128, 192, has_fp16_weights=False).to("cuda")(
            torch.ones(3, 128, device="cuda").half()
        )
    parameter = nn.Parameter(torch.ones(ROWS, 256, device="cuda"))
    names = ("Adam8bit", "AdamW", "AdEMAMix8bit", "PagedLion8bit", "PagedAdamW")
    optimizers = [getattr(bitsandbytes.optim, name)([parameter]) for name in names]
    for optimizer in optimizers:
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return memory()


@pytest.fixture
def no_collection():
    """No garbage is collected in the test: reference cycles would be freed at different times."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_memory_is_the_same_without_values(no_collection):
    found = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="a100"), patch(mode):
            found.append(program())
    assert found[0] == found[1]


def test_what_is_written_without_values_is_unknown(shapes_only):
    parameter = nn.Parameter(torch.ones(64, 64, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    assert parameter[0, 0].item() == 1
    bitsandbytes.optim.AdamW([parameter]).step()
    with pytest.raises(DataDependent):
        parameter[0, 0].item()


def test_kernels_are_chosen_for_the_card():
    """The weight is dequantized where the product of bitsandbytes is slower, which depends on the card."""
    peaks = {}
    for card in ("h100", "rtx_4090", "h100"):
        with forebay.emulate("cuda", profile=card), patch("shapes"):
            layer = layer_of_4_bits("cuda", dtype=torch.float16, rows=16384, columns=1024)
            given = torch.empty(96, 1024, dtype=torch.float16, device="cuda")
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with torch.no_grad():
                layer(given)
            peaks.setdefault(card, set()).add(torch.cuda.max_memory_allocated() - before)
    result, dequantized = 96 * 16384 * 2, 16384 * 1024 * 2
    (h100,), (rtx_4090,) = peaks.values()
    assert rtx_4090 < 2 * result
    assert h100 - rtx_4090 >= dequantized


def test_products_are_captured(emulated):
    layer = layer_of_4_bits("cuda")
    given = torch.randn(300, 128, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        doubled = layer(given) * 2
    given.copy_(torch.randn(300, 128))
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(doubled, layer(given) * 2)


def test_functions_without_a_stream_are_not_captured(emulated):
    """They run once, on CUDA's default stream, which does not wait for PyTorch's streams of captures."""
    parameter, gradient, state = (torch.ones(8, device="cuda") for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.bitsandbytes.optimizer_update_32bit(
            "lion", gradient, parameter, state, None, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.0, 1, 1.0, 1.0, False
        )
        gradient.add_(1)
    assert parameter.tolist() == [0] * 8
    graph.replay()
    assert (parameter.tolist(), gradient.tolist()) == ([0] * 8, [2] * 8)


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


PROGRAM = """
    import torch, forebay
    from forebay.interop.torch import patch

    def step():
        import bitsandbytes as bnb
        layer = bnb.nn.Linear4bit(64, 64, quant_type="nf4").to("cuda")
        loss = layer(torch.ones(2, 64, device="cuda", requires_grad=True)).sum()
        loss.backward()
        print(torch.isfinite(loss).item(), torch.cuda.max_memory_allocated(), bnb.functional.lib.compiled_with_cuda)

    for _ in range(2):
        with forebay.emulate("cuda", profile="a100"), patch():
            step()
    import bitsandbytes as bnb
    library, called = bnb.functional.lib, []
    print(bnb.functional.quantize_4bit(torch.ones(64, 64))[0].shape, type(library).__name__, library.is_emulating)
    library.cquantize_blockwise_fp32_nf4._own = lambda *args: called.append(args)
    library.cquantize_blockwise_fp32_nf4(1, 2)
    print(called)
"""


@pytest.mark.parametrize("first", ["import bitsandbytes", ""], ids=["imported before", "imported while emulated"])
def test_library_is_replaced_whenever_it_is_imported(first):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", f"{first}\n{dedent(PROGRAM)}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    one, other, state, called = done.stdout.splitlines()
    assert one == other
    assert (one[:5], one[-5:]) == ("True ", " True")
    assert (state, called) == ("torch.Size([2048, 1]) BitsandbytesLibrary False", "[(1, 2)]")
    assert "library load error" not in done.stderr


def test_messages_are_shown_again_after_the_emulation(caplog):
    with forebay.emulate("cuda", profile="a100"), patch():
        logging.getLogger("bitsandbytes.cextension").error("bitsandbytes library load error: hidden")
    logging.getLogger("bitsandbytes.cextension").error("bitsandbytes library load error: shown")
    assert [each.getMessage().rpartition(" ")[2] for each in caplog.records] == ["shown"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def quantized_training(folder, place):
    """Return the losses of QLoRA: a model of 4 bits with adapters, which an optimizer with paged states trains."""
    import peft
    import transformers

    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantization, device_map={"": place}, dtype=torch.bfloat16
    )
    torch.manual_seed(1)
    adapters = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(peft.prepare_model_for_kbit_training(model), adapters)
    optimizer = bitsandbytes.optim.PagedAdamW8bit([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    tokens = torch.arange(128).reshape(2, 64).to(place)
    losses = []
    for _ in range(3):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT calls deprecated functions of transformers
def test_training_of_adapters_is_that_of_the_cpu(no_collection, model_folder):
    with pytest.warns(UserWarning, match="Paged optimizers are not supported on CPU"):
        expected = [each.item() for each in quantized_training(model_folder, "cpu")]
    peaks = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="rtx_4090"), patch(mode):
            losses = quantized_training(model_folder, "cuda:0")
            peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
            if mode == "compute":
                assert [each.item() for each in losses] == pytest.approx(expected, rel=1e-3)
            del losses
    assert peaks[0] == peaks[1]
