"""Three training steps and a step of validation on ImageNet's sizes: imagenet.py vgg|resnet|mobilenet BATCH

As the scripts in Test_Pipeline/cnn_models of github.com/itu-rad/GPUMemNet at f01eb05: Adam, float32, loss.item() in
each step.
"""

import sys

import torch
import torchvision

MODELS = {"vgg": "vgg16", "resnet": "resnet50", "mobilenet": "mobilenet_v2"}
SIZE, CLASSES = 224, 1000


def batch_on_device(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, 3, SIZE, SIZE).to("cuda"), torch.randint(0, CLASSES, (count,)).to("cuda")


name, batch = sys.argv[1], int(sys.argv[2])
with torch.device("cuda"):
    model = getattr(torchvision.models, MODELS[name])()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
total = 0.0
for _ in range(3):
    images, labels = batch_on_device(batch)
    optimizer.zero_grad()
    outputs = model(images)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    total += loss.item()
model.eval()
with torch.no_grad():
    images, labels = batch_on_device(batch)
    outputs = model(images)
    total += torch.nn.functional.cross_entropy(outputs, labels).item()
