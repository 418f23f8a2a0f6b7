"""Calls of PyTorch with wrong arguments, and the texts with which its CUDA build refuses them.

Run as a module with PyTorch's CUDA build over the oracle, it prints the calls that are refused with other texts there.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["TEXTS", "ones", "zeros"]

for library in filter(None, os.environ.get("STUB_LIBRARIES", "").split(":")):
    ctypes.CDLL(library)  # before PyTorch loads those of the same name

import torch  # noqa: E402 -- as above
from torch.nn import functional  # noqa: E402 -- as above


def ones(*shape):
    return torch.ones(shape, device="cuda")


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.long, device="cuda")


def conv(*args, **keywords):
    return functional.conv2d(*args, **keywords)


TEXTS = [
    (
        lambda: ones(2, 3) @ ones(4, 5),
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    ),
    (
        lambda: functional.linear(ones(2, 3), ones(5, 4), ones(5)),
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    ),
    (
        lambda: torch.nn.Linear(4, 5, device="cuda")(ones(2, 7, 3)),
        "mat1 and mat2 shapes cannot be multiplied (14x3 and 4x5)",
    ),
    (
        lambda: torch.bmm(ones(2, 3, 4), ones(2, 5, 6)),
        "Expected size for first two dimensions of batch2 tensor to be: [2, 4] but got: [2, 5].",
    ),
    (
        lambda: ones(2, 3) @ ones(3, 4).half(),
        "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
    ),
    (
        lambda: functional.linear(ones(2, 3), ones(4, 3).half(), ones(4)),
        "must have the same dtype, but got",
    ),
    (
        lambda: ones(2, 3) + ones(4, 5),
        "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1",
    ),
    (
        lambda: ones(2, 3).add_(ones(4, 2, 3)),
        "output with shape [2, 3] doesn't match the broadcast shape [4, 2, 3]",
    ),
    (
        lambda: ones(2, 3).copy_(ones(4)),
        "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    ),
    (
        lambda: ones(1, 3).copy_(ones(2, 3)),
        "output with shape [1, 3] doesn't match the broadcast shape [2, 3]",
    ),
    (
        lambda: torch.cat([ones(2, 3), ones(4, 5)], 1),
        (
            "Sizes of tensors must match except in dimension 1. Expected size 2 but got size 4 for tensor number "
            "1 in the list."
        ),
    ),
    (
        lambda: torch.stack([ones(2, 3), ones(4, 5)]),
        "stack expects each tensor to be equal size, but got [2, 3] at entry 0 and [4, 5] at entry 1",
    ),
    (
        lambda: ones(2, 3).view(4, 2),
        "shape '[4, 2]' is invalid for input of size 6",
    ),
    (
        lambda: conv(ones(1, 3, 8, 8), ones(4, 5, 3, 3)),
        (
            "Given groups=1, weight of size [4, 5, 3, 3], expected input[1, 3, 8, 8] to have 5 channels, but got "
            "3 channels instead"
        ),
    ),
    (
        lambda: conv(ones(1, 3, 8, 8), ones(4, 3, 3, 3), ones(5)),
        (
            "Given weight of size [4, 3, 3, 3], expected bias to be 1-dimensional with 4 elements, but got bias "
            "of size [5] instead"
        ),
    ),
    (
        lambda: conv(ones(1, 4, 8, 8), ones(3, 2, 3, 3), groups=2),
        "Given groups=2, expected weight to be divisible by 2 at dimension 0",
    ),
    (
        lambda: functional.conv_transpose2d(ones(1, 3, 8, 8), ones(4, 5, 3, 3)),
        (
            "Given transposed=1, weight of size [4, 5, 3, 3], expected input[1, 3, 8, 8] to have 4 channels, but "
            "got 3 channels instead"
        ),
    ),
    (
        lambda: functional.layer_norm(ones(2, 3), [4]),
        "Given normalized_shape=[4], expected input with shape [*, 4], but got input of size[2, 3]",
    ),
    (
        lambda: functional.cross_entropy(ones(4, 10), zeros(5)),
        "Expected input batch_size (4) to match target batch_size (5).",
    ),
    (
        lambda: functional.cross_entropy(ones(4, 10), zeros(4, 1)),
        "0D or 1D target tensor expected, multi-target not supported",
    ),
    (
        lambda: functional.cross_entropy(ones(4, 9, 5, 5), zeros(4, 6, 6)),
        "input and target batch or spatial sizes don't match: target [4, 6, 6], input [4, 9, 5, 5]",
    ),
    (
        lambda: ones(5).topk(9),
        "selected index k out of range",
    ),
    (
        lambda: ones(2) + torch.ones(2),
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
    (
        lambda: ones(2, 3).unsqueeze(0).expand(4, 3, 3),
        "The expanded size of the tensor (3) must match the existing size (2) at non-singleton dimension 1",
    ),
]


def main():
    for number, (function, text) in enumerate(TEXTS):
        try:
            function()
        except (RuntimeError, ValueError) as error:
            if text not in str(error):
                print(f"{number}: {error}")
        else:
            print(f"{number}: no error")
    print(f"{len(TEXTS)} calls", flush=True)
    os._exit(0)  # libraries without functions cannot be closed


if __name__ == "__main__":
    main()
