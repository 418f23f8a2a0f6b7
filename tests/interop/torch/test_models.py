"""Models on emulated devices: losses, gradients and parameters are those of the CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")
transformers = pytest.importorskip("transformers", reason="transformers is not installed, as PyTorch")

from torch import nn  # noqa: E402 -- as above


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=120, n_positions=64, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLMLoss",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def resnet18():
    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    return transformers.ResNetForImageClassification(config)


def output(result):
    return getattr(result, "logits", result)


MODELS = {
    "MLP": (Mlp, lambda: torch.randn(8, 32)),
    "LSTM": (Lstm, lambda: torch.randn(4, 7, 16)),
    "GPT-2": (gpt2, lambda: torch.randint(0, 120, (2, 24))),
    "ViT": (vit, lambda: torch.randn(2, 3, 32, 32)),
    "ResNet-18": (resnet18, lambda: torch.randn(2, 3, 64, 64)),
}


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_the_cpu(emulated, name, optimizer):
    make, sample = MODELS[name]
    torch.manual_seed(11)
    host = make()
    device = copy.deepcopy(host).cuda()
    batches = [sample() for _ in range(2)]
    losses = []
    for model, place in ((host, "cpu"), (device, "cuda")):
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        losses.append([])
        for batch in batches:
            scores = output(model(batch.to(place))).flatten(0, -2)
            loss = nn.functional.cross_entropy(scores, torch.arange(len(scores), device=place) % 10)
            step.zero_grad()
            loss.backward()
            step.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for (key, one), other in zip(host.state_dict().items(), device.state_dict().values(), strict=True):
        assert other.is_cuda
        torch.testing.assert_close(other.cpu(), one, rtol=1e-3, atol=2e-4, msg=lambda text, key=key: f"{key}: {text}")


def test_generation_is_that_of_the_cpu(emulated):
    torch.manual_seed(11)
    host = gpt2().eval()
    tokens = torch.randint(3, 120, (1, 5))
    mask = torch.ones_like(tokens)
    expected = host.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    device = copy.deepcopy(host).cuda()
    made = device.generate(tokens.cuda(), attention_mask=mask.cuda(), max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert made.tolist() == expected.tolist()
