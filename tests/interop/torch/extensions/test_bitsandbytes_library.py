"""bitsandbytes on emulated devices: imports, allocations in both modes, captures, and training of adapters."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import types
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes for this system")

from support.quantized_layers import ROWS, forward_and_backward, layer_of_4_bits  # noqa: E402 -- needs torch
from torch import nn  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above
from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- as above


def memory():
    statistics = torch.cuda.memory_stats()
    return statistics["allocated_bytes.all.peak"], statistics["allocation.all.allocated"]


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


def test_unknown_version_is_a_warning(monkeypatch):
    """PyTorch works, and bitsandbytes raises its own errors."""
    monkeypatch.setitem(sys.modules, "bitsandbytes.cextension", types.ModuleType("bitsandbytes.cextension"))
    with (
        forebay.emulate("cuda", profile="a100"),
        pytest.warns(forebay.ForebayWarning, match="bitsandbytes cannot use emulated devices: KeyError"),
        patch(),
    ):
        assert torch.ones(2, device="cuda").sum().item() == 2


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
