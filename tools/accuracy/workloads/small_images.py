"""Four training steps on images of 86 x 86 in float32: small_images.py MODEL OPTIMIZER BATCH ZERO_GRAD

As github.com/Stone-ResearchLife/xMem does at d61e0764: torchvision's networks, CIFAR-10 resized, and the output of a
step is held during the next one. ZERO_GRAD is 0 at the start of a step, 1 before backward, 2 after the optimizer.
"""

import sys

import torch
import torchvision

MODELS = {
    "ConvNeXtBase": ("convnext_base", 1000), "ConvNeXtTiny": ("convnext_tiny", 1000),
    "MnasNet": ("mnasnet1_0", 10), "MobeNetV3Large": ("mobilenet_v3_large", 10),
    "MobeNetV3Small": ("mobilenet_v3_small", 10), "MobileNetV2": ("mobilenet_v2", 1000),
    "RegNetX400MF": ("regnet_x_400mf", 1000), "RegNetY400MF": ("regnet_y_400mf", 1000),
    "ResNet101": ("resnet101", 1000), "ResNet152": ("resnet152", 1000), "VGG16": ("vgg16", 1000),
    "VGG19": ("vgg19", 1000),
}  # fmt: skip

name, optimizer_name, batch, zero_grad = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
function, classes = MODELS[name]
with torch.device("cuda"):
    model = getattr(torchvision.models, function)(num_classes=classes)
model.train()
optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)
for _ in range(4):
    if zero_grad == 0:
        optimizer.zero_grad()
    inputs, labels = torch.rand(batch, 3, 86, 86).to("cuda"), torch.randint(0, 10, (batch,)).to("cuda")
    outputs = model(inputs)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    if zero_grad == 1:
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    _, predicted = torch.max(outputs, 1)
    if zero_grad == 2:
        optimizer.zero_grad()
