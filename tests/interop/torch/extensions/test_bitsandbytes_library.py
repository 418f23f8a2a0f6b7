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
PAGED = ("PagedAdam8bit", "PagedAdamW32bit", "PagedAdEMAMix8bit", "PagedLion8bit")


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


def memory():
    statistics = torch.cuda.memory_stats()
    return statistics["allocated_bytes.all.peak"], statistics["allocation.all.allocated"]


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_layers_of_4_bits_are_those_of_the_cpu(emulated, kind, dtype, nested, rows):
    expected = forward_and_backward(layer_of_4_bits("cpu", kind, dtype, nested), "cpu", rows)
    found = forward_and_backward(layer_of_4_bits("cuda", kind, dtype, nested), "cuda", rows)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_products_with_one_row_are_those_of_the_cpu(emulated):
    given = torch.randn(1, 128)
    with torch.no_grad():
        expected, found = layer_of_4_bits("cpu")(given), layer_of_4_bits("cuda")(given.cuda())
        layer = layer_of_4_bits("cuda")
        state = layer.weight.quant_state
        vector = bitsandbytes.functional.gemv_4bit(given.cuda(), layer.weight.t(), state=state) + layer.bias
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(vector.cpu(), expected)


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_layers_of_8_bits_are_those_of_the_cpu(emulated, threshold):
    host = bitsandbytes.nn.Linear8bitLt(128, 192, has_fp16_weights=False, threshold=threshold).eval()
    device = copy.deepcopy(host).to("cuda")
    host = host.to("cpu")
    given = torch.randn(7, 128).half()
    with torch.no_grad():
        expected, found = host(given), device(given.cuda())
    assert (found.cpu() - expected).abs().max() < 0.02 * expected.abs().max()  # the products are rounded elsewhere


def test_blocks_are_quantized_as_on_the_cpu(emulated):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = torch.randn(33, 70).to(dtype)
        codes, state = bitsandbytes.functional.quantize_blockwise(given, blocksize=256)
        on_device, of_device = bitsandbytes.functional.quantize_blockwise(given.cuda(), blocksize=256)
        assert torch.equal(on_device.cpu(), codes)
        expected = bitsandbytes.functional.dequantize_blockwise(codes, state)
        assert torch.equal(bitsandbytes.functional.dequantize_blockwise(on_device, of_device).cpu(), expected)


def train(place, name, **options):
    torch.manual_seed(3)
    parameter = nn.Parameter(torch.randn(96, 64).to(place))  # more than 4096 elements, else the states have 32 bits
    optimizer = getattr(bitsandbytes.optim, name)([parameter], **options)
    for _ in range(3):
        parameter.grad = torch.randn(96, 64).to(place)
        optimizer.step()
    return parameter.detach().cpu()


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_the_cpu(emulated, name, bits):
    options = {**OPTIMIZERS[name], "optim_bits": bits}
    torch.testing.assert_close(train("cuda", name, **options), train("cpu", name, **options))


@pytest.mark.parametrize("name", PAGED)
def test_paged_states_are_in_managed_memory(emulated, name):
    plain = name.removeprefix("Paged").removesuffix("8bit").removesuffix("32bit")
    expected = train("cpu", plain, optim_bits=8 if "8bit" in name else 32)
    torch.cuda.reset_peak_memory_stats()
    torch.testing.assert_close(train("cuda", name), expected)
    few = 4 * (96 * 64 * 4 + 24 * 512)  # the parameter, gradients, maxima of blocks and the codes
    assert torch.cuda.max_memory_allocated() < few


def program():
    for kind, nested, rows in (("nf4", False, 7), ("fp4", True, 300)):
        forward_and_backward(layer_of_4_bits("cuda", kind, torch.bfloat16, nested), "cuda", rows)
    with torch.no_grad():
        bitsandbytes.nn.Linear8bitLt(128, 192, has_fp16_weights=False).to("cuda")(
            torch.ones(3, 128, device="cuda").half()
        )
    parameter = nn.Parameter(torch.ones(96, 64, device="cuda"))
    optimizers = [getattr(bitsandbytes.optim, name)([parameter]) for name in ("Adam8bit", "AdamW", "AdEMAMix8bit")]
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


def update_with_lion(parameter, gradient, state):
    torch.ops.bitsandbytes.optimizer_update_32bit(
        "lion", gradient, parameter, state, None, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.0, 1, 1.0, 1.0, False
    )


def test_captured_calls_run_at_replay(emulated):
    layer = layer_of_4_bits("cuda")
    given = torch.randn(300, 128, device="cuda")
    parameter, state = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        doubled = layer(given) * 2
        update_with_lion(parameter, torch.ones_like(parameter), state)
    assert parameter.tolist() == [1] * 8  # the captured update was undone
    given.copy_(torch.randn(300, 128))
    for value in (0, -1):
        graph.replay()
        assert parameter.tolist() == [value] * 8
    with torch.no_grad():
        torch.testing.assert_close(doubled, layer(given) * 2)


def test_memory_of_the_host_is_refused(emulated):
    codes, state = bitsandbytes.functional.quantize_4bit(torch.ones(64, 64, device="cuda"))
    state.absmax = state.absmax.cpu()
    with pytest.raises(forebay.AcceleratorError, match="an illegal memory access was encountered"):
        bitsandbytes.functional.dequantize_4bit(codes, state)


PROGRAM = """
    import torch, forebay
    from forebay.interop.torch import patch

    def step():
        import bitsandbytes as bnb
        layer = bnb.nn.Linear4bit(64, 64, quant_type="nf4").to("cuda")
        loss = layer(torch.ones(2, 64, device="cuda", requires_grad=True)).sum()
        loss.backward()
        print(torch.isfinite(loss).item(), torch.cuda.max_memory_allocated())

    for _ in range(2):
        with forebay.emulate("cuda", profile="a100"), patch():
            step()
    import bitsandbytes as bnb
    print(bnb.functional.quantize_4bit(torch.ones(64, 64))[0].shape)
    print(type(bnb.functional.lib).__name__, bnb.functional.lib.is_emulating)
    bnb.functional.lib.cquantize_blockwise_fp32_nf4(None, None, None, None, 64, 0)
"""


@pytest.mark.parametrize("first", ["import bitsandbytes", ""], ids=["imported before", "imported while emulated"])
def test_library_is_replaced_whenever_it_is_imported(first):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-u", "-c", f"{first}\n{dedent(PROGRAM)}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    one, other, shape, state, *_ = done.stdout.splitlines()
    assert one == other
    assert one.startswith("True ")
    assert (shape, state) == ("torch.Size([2048, 1])", "BitsandbytesLibrary False")
    assert "library load error" not in done.stderr
    assert done.returncode != 0  # the last call is one of bitsandbytes' own library, which has no device
    assert "DeviceError" not in done.stderr


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
