"""Images for public programs, with and without classes, captions, boxes and masks."""

from __future__ import annotations

import gzip
import json
import random
import struct
from pathlib import Path

from packages.synthetic_texts import write_lines

__all__ = [
    "captioned_images",
    "few_mnist",
    "image_classes",
    "images",
    "images_for_super_resolution",
    "labelled_images",
    "mnist",
    "objects",
    "regions",
    "small_image_classes",
]


def mnist(folder: Path, training: int = 512, test: int = 128) -> None:
    """Write MNIST's four files, with images of 28 x 28 pixels for training and test, packed and not."""
    folder.mkdir(parents=True)
    for name, count in (("train", training), ("t10k", test)):
        numbers = random.Random(count)  # noqa: S311 -- no secrets
        for suffix, header, content in (
            ("images-idx3-ubyte", struct.pack(">IIII", 2051, count, 28, 28), numbers.randbytes(count * 784)),
            ("labels-idx1-ubyte", struct.pack(">II", 2049, count), bytes(each % 10 for each in range(count))),
        ):
            (folder / f"{name}-{suffix}").write_bytes(header + content)
            (folder / f"{name}-{suffix}.gz").write_bytes(gzip.compress(header + content))


def few_mnist(folder: Path) -> None:
    """Write MNIST's files for programs that enlarge the images."""
    mnist(folder, 40, 16)


def images(folder: Path, count: int = 16, size: int = 300) -> None:
    """Write JPEG files of `size` x `size` pixels."""
    from PIL import Image  # type: ignore[import-not-found]  # with torchvision's programs only

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.effect_noise((size, size), 64).convert("RGB").save(folder / f"{number:03}.jpg")


def image_classes(folder: Path) -> None:
    """Write the folders `train` and `val` with two classes of images."""
    for part in ("train", "val"):
        for name in ("first", "second"):
            images(folder / part / name)


def small_image_classes(folder: Path) -> None:
    """Write the folders `train` and `val` with six classes of small images."""
    for part in ("train", "val"):
        for name in "abcdef":
            images(folder / part / name, count=3, size=80)


def images_for_super_resolution(folder: Path) -> None:
    """Write the folders of BSDS300."""
    for part in ("train", "test"):
        images(folder / "images" / part)


def labelled_images(folder: Path) -> None:
    """Write images whose names begin with their class, as in the Oxford pets."""
    images(folder)
    for path in folder.glob("*.jpg"):
        path.rename(folder / f"{('cat', 'dog')[int(path.stem) % 2]}_{path.stem}.jpg")


def captioned_images(folder: Path) -> None:
    """Write images and a file of their captions."""
    images(folder, size=64)
    write_lines(folder / "metadata.jsonl", ({"file_name": f"{each:03}.jpg", "text": "the of"} for each in range(16)))


def objects(folder: Path) -> None:
    """Write images with boxes and masks in the format of COCO."""
    boxes = [[10, 10, 60, 60], [50, 30, 80, 120]]
    for part in ("train", "val"):
        images(folder / f"{part}2017", count=4, size=160)
        marks = [
            {"id": 1 + 2 * number + each, "image_id": number, "category_id": 1 + each, "iscrowd": 0,
             "bbox": box, "area": box[2] * box[3],
             "segmentation": [[box[0], box[1], box[0] + box[2], box[1], box[0] + box[2], box[1] + box[3]]]}
            for number in range(4) for each, box in enumerate(boxes)
        ]  # fmt: skip
        table = {
            "images": [{"id": each, "file_name": f"{each:03}.jpg", "height": 160, "width": 160} for each in range(4)],
            "categories": [{"id": each, "name": str(each)} for each in (1, 2)], "annotations": marks,
        }  # fmt: skip
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(table))


def regions(folder: Path) -> None:
    """Write images with the class of each pixel, in the format of Pascal VOC of 2012."""
    from PIL import Image

    root = folder / "VOCdevkit" / "VOC2012"
    images(root / "JPEGImages", count=4, size=160)
    (root / "SegmentationClass").mkdir()
    for each in range(4):
        marks = Image.new("P", (160, 160), 1)
        marks.paste(2, (20, 20, 90, 90))
        marks.save(root / "SegmentationClass" / f"{each:03}.png")
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for part in ("train", "val"):
        (lists / f"{part}.txt").write_text("000\n001\n002\n003\n")
