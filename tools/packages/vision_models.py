"""Models and losses of packages for images: detection, segmentation, autoencoders, diffusion, augmentation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from packages.program import program, train

MASKS = "it takes the boxes and masks that depend on scores"


def image(count: int = 2, size: int = 32) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@program("timm ResNet", needs=("timm",))
def resnet(place: str) -> torch.Tensor:
    import timm

    torch.manual_seed(0)
    return train(timm.create_model("resnet10t", num_classes=4), [image()], place)


@program("timm Swin", needs=("timm",))
def swin(place: str) -> torch.Tensor:
    import timm

    torch.manual_seed(0)
    options = {
        "img_size": 32,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 16,
        "depths": (2, 2),
        "num_heads": (2, 2),
    }
    return train(timm.models.SwinTransformer(num_classes=4, **options), [image()], place)


@program("timm ConvNeXt, Lamb, EMA", needs=("timm",))
def convnext(place: str) -> torch.Tensor:
    import timm
    import timm.optim
    import timm.utils

    torch.manual_seed(0)
    model = timm.models.ConvNeXt(num_classes=4, depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)).to(place).eval()
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    optimizer, given = timm.optim.create_optimizer_v2(model, "lamb", lr=1e-3), image().to(place)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        average.update(model)
    return loss.detach()


def boxes(place: str) -> list[dict[str, torch.Tensor]]:
    found = torch.tensor([[4.0, 4.0, 40.0, 40.0], [20.0, 8.0, 60.0, 30.0]], device=place)
    marks = torch.zeros(2, 64, 64, dtype=torch.uint8, device=place)
    marks[:, 8:30, 20:40] = 1
    return [{"boxes": found, "labels": torch.tensor([1, 2], device=place), "masks": marks} for _ in range(2)]


def train_detector(model: nn.Module, place: str) -> torch.Tensor:
    model = model.to(place).train()
    optimizer, targets = torch.optim.SGD(model.parameters(), 1e-3), boxes(place)
    given = list(image(size=64).to(place))
    for _ in range(2):
        optimizer.zero_grad()
        loss = sum(model(given, targets).values())
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        model.eval()(given)
    return loss.detach()


@program("torchvision Mask R-CNN", needs=("torchvision",), reads_values=MASKS, on_gpu_only=True)
def mask_rcnn(place: str) -> torch.Tensor:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.manual_seed(0)
    model = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64, rpn_post_nms_top_n_train=50,
        rpn_post_nms_top_n_test=50, box_batch_size_per_image=32,
    )  # fmt: skip
    return train_detector(model, place)


@program("torchvision SSDLite", needs=("torchvision",), reads_values=MASKS, on_gpu_only=True)
def ssd(place: str) -> torch.Tensor:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    torch.manual_seed(0)
    return train_detector(ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4), place)


@program("torchvision RetinaNet", needs=("torchvision",), reads_values=MASKS, on_gpu_only=True)
def retinanet(place: str) -> torch.Tensor:
    from torchvision.models.detection import retinanet_resnet50_fpn

    torch.manual_seed(0)
    options = {"num_classes": 4, "min_size": 64, "max_size": 64}
    return train_detector(retinanet_resnet50_fpn(weights=None, weights_backbone=None, **options), place)


@program("torchvision DeepLabV3", needs=("torchvision",))
def deeplab(place: str) -> torch.Tensor:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    torch.manual_seed(0)
    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    return train(model, [image(size=64)], place, lambda result: result["out"].square().mean(), steps=1)


@program("torchvision augmentation on the device", needs=("torchvision",))
def augmentation(place: str) -> torch.Tensor:
    from torchvision.transforms import v2

    steps = v2.Compose([
        v2.Resize((24, 24), antialias=True), v2.ColorJitter(0.1, 0.1), v2.GaussianBlur(3), v2.RandomErasing(1.0),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ])  # fmt: skip
    torch.manual_seed(0)
    return steps(image().to(place)).square().mean() * 0 + 1


@program("ultralytics YOLO11", needs=("ultralytics",), on_gpu_only=True, reads_values="it assigns boxes by scores")
def yolo(place: str) -> torch.Tensor:
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    torch.manual_seed(0)
    model = DetectionModel("yolo11n.yaml", nc=4, verbose=False)
    model.args = get_cfg()
    model = model.to(place).train()
    batch = {
        "img": image(size=64).to(place), "cls": torch.zeros(2, 1), "batch_idx": torch.tensor([0.0, 1.0]),
        "bboxes": torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.4, 0.4, 0.2, 0.2]]),
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(batch)[0].sum()
        loss.backward()
        optimizer.step()
    return loss.detach()


@program("open_clip", needs=("open_clip",))
def clip(place: str) -> torch.Tensor:
    import open_clip

    torch.manual_seed(0)
    model = open_clip.CLIP(
        embed_dim=16, vision_cfg={"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32},
        text_cfg={"context_length": 8, "vocab_size": 64, "width": 32, "heads": 4, "layers": 2},
    )  # fmt: skip
    texts = torch.arange(16).reshape(2, 8)

    def loss(result: Any) -> torch.Tensor:
        return open_clip.ClipLoss()(*result)

    return train(model, [image(), texts], place, loss)


@program("segmentation_models_pytorch Unet, DiceLoss", needs=("segmentation_models_pytorch",))
def unet(place: str) -> torch.Tensor:
    import segmentation_models_pytorch

    torch.manual_seed(0)
    model = segmentation_models_pytorch.Unet("resnet18", encoder_weights=None, decoder_channels=(32, 16, 16, 8, 8))
    target = (image(size=64)[:, :1] > 0.5).float().to(place)
    loss = segmentation_models_pytorch.losses.DiceLoss("binary")
    return train(model, [image(size=64)], place, lambda result: loss(result, target), steps=1)


@program("vit_pytorch SimpleViT", needs=("vit_pytorch",))
def simple_vit(place: str) -> torch.Tensor:
    from vit_pytorch.simple_vit import SimpleViT

    torch.manual_seed(0)
    model = SimpleViT(image_size=32, patch_size=8, num_classes=4, dim=32, depth=2, heads=2, mlp_dim=64)
    return train(model, [image()], place)


@program("denoising_diffusion_pytorch", needs=("denoising_diffusion_pytorch",))
def denoising(place: str) -> torch.Tensor:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    torch.manual_seed(0)
    model = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=4).to(place)
    loss = model(image(size=16).to(place))
    loss.backward()
    return model.sample(batch_size=2).square().mean() * 0 + 1  # of random noise


@program("vector_quantize_pytorch", needs=("vector_quantize_pytorch",))
def codebook(place: str) -> torch.Tensor:
    from vector_quantize_pytorch import FSQ

    torch.manual_seed(0)
    return train(FSQ([4, 4, 4], dim=8), [torch.randn(2, 16, 8)], place, lambda result: result[0].square().mean())


@program("kornia augmentation, SSIM", needs=("kornia",))
def kornia_losses(place: str) -> torch.Tensor:
    import kornia

    first, second = image().to(place).requires_grad_(), image().to(place).flip(-1)
    blurred = kornia.filters.gaussian_blur2d(first, (3, 3), (1.0, 1.0))
    edges = kornia.filters.sobel(kornia.color.rgb_to_grayscale(blurred))
    loss = kornia.losses.ssim_loss(first, second, 5) + edges.mean()
    loss.backward()
    return loss.detach()


@program("monai UNet, DiceCELoss, sliding windows", needs=("monai",))
def monai_unet(place: str) -> torch.Tensor:
    import monai

    torch.manual_seed(0)
    model = monai.networks.nets.UNet(3, 1, 2, (8, 16), (2,)).to(place).eval()
    given = torch.rand(1, 1, 16, 16, 16).to(place)
    loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)(model(given), (given > 0.5).float())
    loss.backward()
    with torch.no_grad():
        monai.inferers.sliding_window_inference(given, (8, 8, 8), 2, model)
    return loss.detach()
