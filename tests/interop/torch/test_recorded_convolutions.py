"""Peaks of convolutional networks that were recorded on a GPU: in the range that workspaces of cuDNN have.

tests/data/convolution_peaks.csv has what nvidia-smi showed on an A100 with 40 GB (github.com/itu-rad/GPUMemNet, commit
f01eb05, arXiv:2602.17817): torchvision's models on ImageNet, Adam, float32, without cudnn.benchmark. The processes had
1,443 to 1,800 MiB besides, as multilayer perceptrons and MobileNetV2 on the same machine show, which need no workspace.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="rehearses PyTorch programs on emulated devices")

from torch import nn  # noqa: E402 -- after the test for PyTorch

import forebay  # noqa: E402 -- as above
from forebay.interop.torch.session import TorchSession  # noqa: E402 -- as above

MIB = 1 << 20
FEWEST, MOST = 1443, 1800  # MiB outside the allocator
ROWS = csv.DictReader((Path(__file__).parents[2] / "data" / "convolution_peaks.csv").read_text().splitlines())
PEAKS = {(row["model"], int(row["batch"])): int(row["peak_mib"]) for row in ROWS}
TOLERANCE = 0.02


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut, self.last = nn.Identity(), nn.ReLU(inplace=True)
        if channels != 4 * width:
            other = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(other, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = self.layers(x)
        y += self.shortcut(x)
        return self.last(y)


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(channels, width, 1 if number else stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16():
    layers, channels = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def peaks(make, batch):
    """Return the reserved MiB of a training, without workspaces and with them."""
    with forebay.emulate("cuda", profile="a100_40gb"):
        session = TorchSession("shapes")
        session.start()
        try:
            with torch.device("cuda"):
                model = make()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                images, labels = torch.randn(batch, 3, 224, 224).cuda(), torch.randint(1000, (batch,)).cuda()
                optimizer.zero_grad()
                output = model(images)
                loss = nn.functional.cross_entropy(output, labels)
                loss.backward()
                optimizer.step()
            (use,) = session.results()
            most = session.most_workspaces()[0]
        finally:
            session.stop()
    return use.peak_reserved / MIB, (use.peak_reserved + most) / MIB


@pytest.mark.parametrize(("make", "batch"), [(resnet50, 128), (vgg16, 128)])
def test_recorded_peaks_are_in_the_range(make, batch):
    low, high = peaks(make, batch)
    recorded = PEAKS[make.__name__, batch]
    assert low + FEWEST < recorded * (1 + TOLERANCE)
    assert recorded * (1 - TOLERANCE) < high + MOST
    assert high - low < recorded / 3  # a range that says something
