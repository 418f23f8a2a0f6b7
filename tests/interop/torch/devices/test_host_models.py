"""Models that are built or loaded on the host and then moved: the peaks with values and without are equal."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")
transformers = pytest.importorskip("transformers", reason="builds its models")

import forebay  # noqa: E402 -- after the check
from forebay.interop.torch import patch  # noqa: E402 -- as above

IDS = torch.arange(96).reshape(2, 48) % 60 + 2
LENGTHS = torch.tensor([48, 31])
SIZES = {"vocab_size": 8192, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}  # 2 MiB of embeddings
LAYERS = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}


def trained(model, **inputs):
    """Take two steps on the device."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(**{name: each.cuda() for name, each in inputs.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def gpt2():
    config = transformers.GPT2Config(n_embd=128, n_layer=2, n_head=2, **SIZES)
    return transformers.GPT2LMHeadModel(config)


def train_gpt2(folder):
    trained(gpt2(), input_ids=IDS, labels=IDS)


def train_gpt2_in_bfloat16(folder):
    config = transformers.GPT2Config(n_embd=128, n_layer=2, n_head=2, **SIZES)
    trained(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), input_ids=IDS, labels=IDS)


def train_t5(folder):
    config = transformers.T5Config(d_model=128, d_ff=256, num_layers=2, num_heads=2, decoder_start_token_id=0, **SIZES)
    trained(transformers.T5ForConditionalGeneration(config), input_ids=IDS.repeat(4, 3), labels=IDS.repeat(4, 3))


def train_bert_with_padding(folder):
    config = transformers.BertConfig(**LAYERS, **SIZES)
    mask = (torch.arange(48)[None] < LENGTHS[:, None]).long()
    labels = IDS.masked_fill(mask == 0, -100)
    trained(transformers.BertForMaskedLM(config), input_ids=IDS, attention_mask=mask, labels=labels)


def generate_with_llama(folder):
    config = transformers.LlamaConfig(**LAYERS, **SIZES)
    model = transformers.LlamaForCausalLM(config).cuda().eval()
    mask = (torch.arange(48)[None] >= 48 - LENGTHS[:, None]).long()
    model.generate(
        IDS.cuda(), attention_mask=mask.cuda(), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
    )


def train_clip(folder):
    text, vision = {**LAYERS, **SIZES}, {**LAYERS, "intermediate_size": 4096, "image_size": 32, "patch_size": 8}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)).cuda()
    output = model(input_ids=IDS.cuda(), pixel_values=torch.randn(2, 3, 32, 32).cuda(), return_loss=True)
    output.loss.backward()


def train_whisper(folder):
    config = transformers.WhisperConfig(
        d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=256, decoder_ffn_dim=256, max_source_positions=64, decoder_start_token_id=1, **SIZES,
    )  # fmt: skip
    trained(transformers.WhisperForConditionalGeneration(config), input_features=torch.randn(2, 80, 128), labels=IDS)


def train_vision(folder):
    """A convolutional network, initialised as torchvision's."""
    layers = torch.nn
    model = layers.Sequential(
        layers.Conv2d(3, 128, 3), layers.BatchNorm2d(128), layers.ReLU(), layers.Conv2d(128, 512, 3),
        layers.AdaptiveAvgPool2d(4), layers.Flatten(), layers.Linear(8192, 256), layers.Linear(256, 10),
    )  # fmt: skip
    for each in model.modules():
        if isinstance(each, layers.Conv2d):
            layers.init.kaiming_normal_(each.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(each, layers.Linear):
            layers.init.trunc_normal_(each.weight, std=0.02)
    model.cuda()
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()


def save_and_load(folder):
    model = trained(gpt2(), input_ids=IDS, labels=IDS)
    other = gpt2()
    other.load_state_dict({name: each.cpu() for name, each in model.state_dict().items()})
    trained(other.half().float(), input_ids=IDS, labels=IDS)


def average_on_the_host(folder):
    model = gpt2()
    average = copy.deepcopy(model)
    model = trained(model, input_ids=IDS, labels=IDS)
    with torch.no_grad():
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.lerp_(other.cpu(), 0.1)
    trained(average, input_ids=IDS, labels=IDS)


def load_a_checkpoint(folder):
    model = gpt2()
    model.load_state_dict(torch.load(folder / "checkpoint.pt", map_location="cpu"))
    trained(model, input_ids=IDS, labels=IDS)


def load_pretrained(folder):
    trained(transformers.GPT2LMHeadModel.from_pretrained(folder / "pretrained"), input_ids=IDS, labels=IDS)


def load_on_the_device(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "pretrained", dtype=torch.bfloat16)
    trained(model, input_ids=IDS, labels=IDS)


PROGRAMS = [
    average_on_the_host, generate_with_llama, load_a_checkpoint, load_on_the_device, load_pretrained, save_and_load,
    train_bert_with_padding, train_clip, train_gpt2, train_gpt2_in_bfloat16, train_t5, train_vision, train_whisper,
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a checkpoint and a pretrained model."""
    made = tmp_path_factory.mktemp("models")
    model = gpt2()
    torch.save(model.state_dict(), made / "checkpoint.pt")
    model.save_pretrained(made / "pretrained")
    return made


def peak(program, folder, mode):
    torch.manual_seed(0)
    with forebay.emulate("cuda", profile="h100"), patch(mode):
        program(folder)
        return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.rand(2).tolist()


@pytest.mark.parametrize("program", PROGRAMS)
def test_peaks_with_and_without_values_are_equal(program, folder):
    assert peak(program, folder, "shapes") == peak(program, folder, "compute")
