"""Three training steps of a timm model: timm_model.py MODEL BATCH

With the defaults of timm's train.py: SGD with momentum, label smoothing, float32, and the next batch on the device
before the step begins.
"""

import sys

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy

name, batch = sys.argv[1], int(sys.argv[2])
with torch.device("cuda"):
    model = timm.create_model(name)
size = model.default_cfg["input_size"]
criterion = LabelSmoothingCrossEntropy(0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-5, nesterov=True)


def batch_on_device() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(batch, *size).to("cuda"), torch.randint(0, 1000, (batch,)).to("cuda")


following = batch_on_device()
for _ in range(3):
    images, labels = following
    following = batch_on_device()
    outputs = model(images)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
