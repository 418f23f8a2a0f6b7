"""Launch geometry of reductions, compared with sizes that PyTorch took for an H200 (132 multiprocessors)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the layouts are those of PyTorch's tensors")

from forebay.interop.torch.kernels.reduction_geometry import Buffers, reduction_buffers  # noqa: E402 -- needs torch


@pytest.mark.parametrize(
    ("shape", "dims", "size", "expected"),
    [
        ((3_000_000,), (), 4, (1468, 4)),
        ((30_000, 64), (0,), 4, (3_850_240, 4)),
        ((40_000, 50), (0,), 4, (1_004_800, 8)),
        ((5000, 1000), (0,), 4, (40_448_000, 32)),
        ((64, 30_000), (1,), 4, (0, 0)),
        ((200, 100, 300), (0, 2), 4, (0, 0)),
        ((1000,), (), 4, (0, 0)),
        ((0, 4), (0,), 4, (0, 0)),
        ((), (), 4, (0, 0)),
    ],
)
def test_buffers_are_those_of_pytorch(shape, dims, size, expected):
    given = torch.empty(shape, device="meta")
    assert reduction_buffers(given, dims, size, 132, 2048) == Buffers(*expected)


def test_layout_decides():
    given = torch.empty(30_000, 64, device="meta")
    assert reduction_buffers(given.T, (1,), 4, 132, 2048) == reduction_buffers(given, (0,), 4, 132, 2048)
    assert reduction_buffers(given[:, ::2], (0,), 4, 132, 2048) == Buffers(483_328, 4)
