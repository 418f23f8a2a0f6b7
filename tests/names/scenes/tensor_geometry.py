"""Strides, formats and errors of views, indices and copies: PyTorch's own rules, not NumPy's."""

from __future__ import annotations

import numpy as np
from support.on_oracle import outcome


def strides(cuda, torch_like):
    empty, column = torch_like.empty, torch_like.empty(1, 3).transpose(0, 1)
    made = [
        *(empty(5, 3)[None], empty(0, 3)[...], empty(0, 3).transpose(0, 1), torch_like.empty_like(column)),
        *(column.clone(), column.to(torch_like.float64), empty(3)[:, None], empty(2, 0, 3).permute(2, 0, 1)),
        *(empty(3, 1).expand(1, 3, 5), empty(2, 3, 1).squeeze(-1), empty(4, 6)[::2, 1:4], empty(4, 6)[9:, 2]),
        *(empty(6).view(1, 6, 1), empty(0, 3).reshape(3, 0, 1), empty(2, 3).unsqueeze(-1), empty(4, 4)[:, ::2].clone()),
    ]
    return [[list(x.shape), list(x.stride()), x.storage_offset(), x.is_contiguous()] for x in made]


def formats(cuda, torch_like):
    pi = torch_like.tensor(3.14159)
    return [f"{torch_like.tensor(3)}", f"{pi:.2f}", outcome(cuda, format, torch_like.tensor([1]), ".2f")]


def errors_of_views(cuda, torch_like):
    x, scalar = torch_like.empty(3), torch_like.tensor(3)
    calls = [
        *(
            lambda: x[99],
            lambda: x[0, 0],
            lambda: x.permute(1, 0),
            lambda: torch_like.empty(2, 1).copy_(x[None].expand(2, 3)),
        ),
        *(
            lambda: x.expand(3, -1, -1),
            lambda: scalar[0],
            lambda: scalar[0, 0],
            lambda: scalar[:],
            lambda: x.transpose(0, 4),
        ),
        *(lambda: x.permute(0, 0), lambda: x.unsqueeze(4), lambda: x.narrow(0, 2, 9), lambda: x.narrow(0, 9, 1)),
        *(lambda: x.select(0, 7), lambda: x.split(-1), lambda: x.chunk(0), lambda: x.as_strided((9,), (1,))),
        *(lambda: x.view(torch_like.float64), lambda: x.movedim((0, 0), (0, 0)), lambda: x.unflatten(0, (2, 2))),
        *(scalar.unbind, x.diagonal, lambda: x.unfold(0, 9, 1), lambda: x.flatten(1, 0)),
        *(lambda: x.copy_(torch_like.empty(4)), lambda: x.size(np.int64(3)), lambda: x.mT, x[None, None].t),
    ]
    return [outcome(cuda, call) for call in calls]


def numpy_integers(cuda, torch_like):
    one, two = np.int64(1), np.int8(2)
    x = torch_like.empty(3, 3)
    return [
        *(
            str(torch_like.device(one)),
            str(torch_like.device("cuda", one)),
            str(torch_like.empty(1, device=one).device),
        ),
        *(
            str(x.to(one).device),
            str(x.cuda(one).device),
            list(x[one, :two].shape),
            list(x.narrow(one, one, two).shape),
        ),
        *(x.size(one), x.stride(one), list(x.view(np.int64(9)).shape), list(x.transpose(one, 0).stride())),
    ]
