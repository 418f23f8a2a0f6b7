"""Models of images: of torchvision, timm and transformers, and a convolutional network of plain PyTorch."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from gpu.workloads.training import ADAMW, ADAMW_FUSED, SGD, Recipe, training
from gpu.workloads.workload import Setting, Step, workload

__all__ = ["own_cnn", "random_images"]

CLASSES, SIDE = 100, 224


def random_images(setting: Setting, batch: int, side: int = SIDE) -> Any:
    return torch.randn(setting.batch(batch), 3, setting.length(side), setting.length(side), device=setting.device)


def classification(setting: Setting, model: Any, recipe: Recipe, batch: int, *, channels_last: bool = False) -> Step:
    """Return a training step that classifies random images."""
    model = model.to(setting.device).train()
    images = random_images(setting, batch)
    if channels_last:
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    classes = torch.randint(CLASSES, (len(images),), device=setting.device)
    return training(setting, model, lambda: F.cross_entropy(model(images), classes), recipe)


def inference(model: Any, images: Any) -> Step:
    def step() -> Any:
        with torch.no_grad():
            return model(images).float().mean()

    return step


def resnet50() -> Any:
    from torchvision.models import resnet50

    return resnet50(weights=None, num_classes=CLASSES)


def own_cnn() -> Any:
    """Return a network of convolutions, batch norms and pools."""
    layers: list[Any] = []
    channels = 3
    for width in (64, 128, 256, 512):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, CLASSES))


@workload("resnet50_fp32", packages=("torchvision",))
def resnet50_fp32(setting: Setting) -> Step:
    return classification(setting, resnet50(), Recipe(SGD), 16)


@workload("resnet50_fp16_channels_last", packages=("torchvision",))
def resnet50_fp16_channels_last(setting: Setting) -> Step:
    return classification(setting, resnet50(), Recipe(SGD, autocast="fp16"), 16, channels_last=True)


@workload("resnet50_inference", packages=("torchvision",))
def resnet50_inference(setting: Setting) -> Step:
    dtype = torch.float16 if setting.device == "cuda" else torch.float32
    model = resnet50().to(setting.device, dtype).eval()
    return inference(model, random_images(setting, 32).to(dtype))


@workload("convnext_bf16", packages=("timm",))
def convnext_bf16(setting: Setting) -> Step:
    import timm

    model = timm.create_model("convnext_atto", pretrained=False, num_classes=CLASSES)
    return classification(setting, model, Recipe(ADAMW_FUSED, autocast="bf16"), 32)


@workload("vit_bf16", packages=("transformers",))
def vit_bf16(setting: Setting) -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=setting.layers(8), num_attention_heads=6,
        patch_size=14, image_size=setting.length(SIDE), num_labels=CLASSES,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(setting.device).train()
    images = random_images(setting, 32)
    classes = torch.randint(CLASSES, (len(images),), device=setting.device)
    return training(setting, model, lambda: model(images, labels=classes).loss, Recipe(ADAMW, autocast="bf16"))


@workload("cnn_fp32")
def cnn_fp32(setting: Setting) -> Step:
    torch.backends.cudnn.allow_tf32 = False
    return classification(setting, own_cnn(), Recipe(SGD), 8)


@workload("cnn_tf32")
def cnn_tf32(setting: Setting) -> Step:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    nesterov = partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return classification(setting, own_cnn(), Recipe(nesterov), 8)


@workload("cnn_bf16_inference")
def cnn_bf16_inference(setting: Setting) -> Step:
    """Run a network that was made on the device, in channels_last."""
    with torch.device(setting.device):
        model = own_cnn().to(torch.bfloat16, memory_format=torch.channels_last).eval()
    images = random_images(setting, 32).to(torch.bfloat16, memory_format=torch.channels_last)
    return inference(model, images)


class Autoencoder(nn.Module):
    """A variational autoencoder with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        down = [
            each
            for one, other in pairwise(widths)
            for each in (nn.Conv2d(one, other, 4, 2, 1), nn.GroupNorm(8, other), nn.SiLU())
        ]
        up = [
            each
            for one, other in pairwise(widths[:0:-1])
            for each in (nn.ConvTranspose2d(one, other, 4, 2, 1), nn.BatchNorm2d(other), nn.LeakyReLU(0.2))
        ]
        self.encoder = nn.Sequential(*down, nn.Conv2d(256, 2 * 256, 1))
        self.decoder = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Sigmoid())

    def forward(self, images: Any) -> tuple[Any, Any, Any]:
        mean, logarithm = self.encoder(images).chunk(2, dim=1)
        return self.decoder(mean + torch.randn_like(mean) * (logarithm / 2).exp()), mean, logarithm


@workload("autoencoder_fp32")
def autoencoder_fp32(setting: Setting) -> Step:
    model = Autoencoder().to(setting.device)
    images = random_images(setting, 16, 128).sigmoid()

    def loss() -> Any:
        made, mean, logarithm = model(images)
        divergence = -0.5 * (1 + logarithm - mean.square() - logarithm.exp()).mean()
        return F.binary_cross_entropy(made, images) + 0.1 * divergence

    return training(setting, model, loss, Recipe(partial(torch.optim.Adam, lr=1e-4)))
