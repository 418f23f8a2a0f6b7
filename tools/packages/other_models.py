"""Models, layers, metrics and optimizers of other packages."""

from __future__ import annotations

import torch
from torch import nn

from packages.program import program, train


@program("diffusers UNet2DConditionModel")
def unet(place: str) -> torch.Tensor:
    import diffusers

    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip
    inputs = torch.randn(2, 4, 16, 16), torch.tensor([1, 2]), torch.randn(2, 5, 16)
    return train(model, inputs, place, lambda result: result.sample.square().mean())


@program("diffusers AutoencoderKL")
def autoencoder(place: str) -> torch.Tensor:
    import diffusers

    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, latent_channels=4,
    )  # fmt: skip
    return train(model, [torch.randn(2, 3, 32, 32)], place, lambda result: result.sample.square().mean())


@program("torch_geometric GCNConv, GATConv")
def graph(place: str) -> torch.Tensor:
    from torch_geometric.nn import GATConv, GCNConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(8, 16), GATConv(16, 4)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(nodes, edges).relu(), edges)

    torch.manual_seed(0)
    return train(Network(), [torch.ones(4, 8), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])], place)


@program("x_transformers Decoder")
def decoder(place: str) -> torch.Tensor:
    import x_transformers

    torch.manual_seed(0)
    layers = x_transformers.Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    model = x_transformers.TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers)
    return train(model, [torch.arange(16).reshape(2, 8)], place)


@program("torchmetrics Accuracy")
def accuracy(place: str) -> torch.Tensor:
    import torchmetrics

    metric = torchmetrics.Accuracy("multiclass", num_classes=4).to(place)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        metric.update(torch.randn(8, 4, generator=generator).to(place), (torch.arange(8) % 4).to(place))
    return metric.compute()


@program("bitsandbytes Linear4bit, AdamW8bit")
def quantized(place: str) -> torch.Tensor:
    import bitsandbytes

    torch.manual_seed(0)
    layer, head = bitsandbytes.nn.Linear4bit(64, 256, quant_type="nf4").to(place), nn.Linear(256, 64).to(place)
    given = torch.randn(8, 64).to(place)
    optimizer = bitsandbytes.optim.AdamW8bit(head.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = head(layer(given)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.detach()


def train_with(optimizer: type[torch.optim.Optimizer], place: str) -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(256, 256).to(place)
    steps = optimizer(layer.parameters())
    for _ in range(2):
        steps.zero_grad()
        loss = layer(torch.ones(4, 256, device=place)).square().mean()
        loss.backward()
        steps.step()
    return loss.detach()


@program("torchao AdamW8bit")
def torchao_optimizer(place: str) -> torch.Tensor:
    from torchao.optim import AdamW8bit

    return train_with(AdamW8bit, place)


@program("lion_pytorch Lion")
def lion(place: str) -> torch.Tensor:
    from lion_pytorch import Lion

    return train_with(Lion, place)


@program("torchao int8 weights")
def integer_weights(place: str) -> torch.Tensor:
    from torchao.quantization import Int8WeightOnlyConfig

    return quantized_forward(Int8WeightOnlyConfig(), place)


@program("torchao int8 weights and activations")
def integers(place: str) -> torch.Tensor:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return quantized_forward(Int8DynamicActivationInt8WeightConfig(), place)


@torch.no_grad()
def quantized_forward(config: object, place: str) -> torch.Tensor:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(place)
    quantize_(model, config)
    return model(torch.ones(32, 64, device=place)).square().mean()
