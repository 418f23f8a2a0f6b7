"""Losses, softmax and embeddings on emulated devices: the intermediate results of their kernels on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, open_torch_device
from forebay.interop.torch.kernels.contiguous_copies import with_copy
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.reductions import take_reduction
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, nbytes_of, values_of
from forebay.interop.torch.kernels.temporary_storage import bits_of, sort_bytes
from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["LOSS_KERNELS"]

_aten = torch.ops.aten


def _softmax_backward(gradient: torch.Tensor, output: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the gradient. The product of the gradient and the output, and the output, are made contiguous."""
    result = _compute_softmax_backward(gradient, output, *args, **kwargs)
    with Scratch(output.device) as scratch:
        scratch.take(nbytes_of(output))
        if not (gradient.is_contiguous() and output.is_contiguous()):
            scratch.contiguous(torch.mul(_without_memory(gradient), _without_memory(output)))
            scratch.contiguous(output)
    return result


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _embedding_backward(gradient: torch.Tensor, indices: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the gradient of the weights. More than 3072 indices are sorted; what the sums take is not counted."""
    with Scratch(gradient.device) as scratch:
        scratch.contiguous(indices)
        scratch.contiguous(gradient)
        result = _compute_embedding_backward(gradient, indices, *args, **kwargs)
        if indices.numel() > _FEW_INDICES:
            rows = args[0] if args else kwargs["num_weights"]
            for _ in range(3):  # sorted indices, their former places, the places before
                scratch.take(nbytes_of(indices))
            scratch.take(
                sort_bytes(scratch.opened, indices.numel(), indices.itemsize, indices.itemsize, bits_of(int(rows)))
            )
    return result


def _loss_2d(
    given: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the loss and the sum of the weights, which is allocated first. Arguments are made contiguous."""
    arguments, named = [values_of(each) for each in args], {key: values_of(each) for key, each in kwargs.items()}
    loss, weights = _compute_2d(values_of(given), values_of(target), *arguments, **named)
    opened = open_torch_device(given.device)
    second = adopt(weights, opened)
    first = adopt(loss, opened)
    reduction = args[1] if len(args) > 1 else kwargs["reduction"]
    with Scratch(opened) as scratch:
        if reduction:
            scratch.contiguous(given)
        scratch.contiguous(args[0] if args else kwargs["weight"])
        if reduction:
            scratch.contiguous(target)
    return first, second


def _reduced_loss(operator: Any, *, result_first: bool) -> Callable[..., Any]:
    """Return the kernel of a loss that computes the loss of each element before it reduces them."""
    compute = generic_kernel(operator, values.device)

    def kernel(given: torch.Tensor, target: torch.Tensor, reduction: int = 1, *args: Any, **kwargs: Any) -> Any:
        if not reduction or not (given.is_cuda and target.is_cuda):
            return compute(given, target, reduction, *args, **kwargs)
        shape = torch.broadcast_shapes(given.shape, target.shape)
        with Scratch(given.device) as scratch:
            if result_first:
                result = _with_room(operator, shape.numel(), given, target, reduction, *args, **kwargs)
            scratch.take(shape.numel() * given.itemsize)
            if not result_first:
                result = compute(given, target, reduction, *args, **kwargs)
            take_reduction(scratch.opened, torch.empty(shape, dtype=given.dtype, device="meta"), [], given.dtype)
        return result

    return kernel


def _with_room(operator: Any, count: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return a reduced loss, which is the first of `count` elements in memory: those of the losses before."""
    check_devices(*(each for each in args if isinstance(each, torch.Tensor)))
    arguments, named = [values_of(each) for each in args], {key: values_of(each) for key, each in kwargs.items()}
    found = over_values(operator)(*arguments, **named)
    room = torch.empty(max(1, count), dtype=found.dtype, device=found.device)
    return adopt(room[0].copy_(found), open_torch_device(args[0].device))


def _binary_cross_entropy(
    given: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> Any:
    """Return the loss. The reduced loss is copied to the memory of the losses of the elements."""
    if not reduction or not (given.is_cuda and target.is_cuda):
        return _compute_binary(given, target, weight, reduction)
    result = _with_room(_aten.binary_cross_entropy.default, given.numel(), given, target, weight, reduction)
    with Scratch(given.device) as scratch:
        scratch.take(given.itemsize)
        shape = torch.empty(given.shape, dtype=given.dtype, device="meta")
        take_reduction(scratch.opened, shape, [], given.dtype)
    return result


_compute_binary = generic_kernel(_aten.binary_cross_entropy.default, values.device)


def _log_sigmoid(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and an empty buffer, where the CPU's kernel keeps powers for the gradient."""
    opened = open_torch_device(given.device)
    result = adopt(_compute_log_sigmoid(values_of(given))[0], opened)
    return result, torch.empty(0, dtype=given.dtype, device=given.device)


def _log_sigmoid_backward(gradient: torch.Tensor, given: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    powers = _compute_log_sigmoid(values_of(given))[1]
    found = _compute_log_sigmoid_backward(values_of(gradient), values_of(given), powers)
    return adopt(found, open_torch_device(given.device))


def _ctc(operator: Any) -> Callable[..., Any]:
    """Return the kernel of alignments, which copies the lengths and the begins of the targets to the device."""
    compute = over_values(operator)

    def kernel(scores: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, alignments = compute(
            values_of(scores), *map(values_of, args), **{key: values_of(each) for key, each in kwargs.items()}
        )
        opened = open_torch_device(scores.device)
        with Scratch(opened) as scratch:
            _take_lengths(scratch, scores)
            kept = adopt(alignments, opened)
            return adopt(loss, opened), kept

    return kernel


def _ctc_backward(operator: Any) -> Callable[..., Any]:
    compute = generic_kernel(operator, values.device)

    def kernel(gradient: torch.Tensor, scores: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        alignments = args[_ALIGNMENTS] if len(args) > _ALIGNMENTS else kwargs["log_alpha"]
        with Scratch(scores.device) as scratch:
            _take_lengths(scratch, scores)
            scratch.take(nbytes_of(alignments))
            result: torch.Tensor = compute(gradient, scores, *args, **kwargs)
            _take_blanks(scratch, scores, alignments)
        return result

    return kernel


def _take_blanks(scratch: Scratch, scores: torch.Tensor, alignments: torch.Tensor) -> None:
    """Take and free the sums over the alignments of the blank, which large problems compute by logsumexp()."""
    steps, batch = scores.shape[0], scores.shape[1] if scores.dim() == 3 else 1
    if 2 * steps + 24 * batch // 10 + 2 * scores.shape[-1] // 10 <= _LARGE:
        return
    blanks = batch * steps * (alignments.shape[-1] // 2 + 1) * scores.itemsize
    of_steps = batch * steps * scores.itemsize
    with Scratch(scratch.opened) as outer:
        outer.take(blanks)
        with Scratch(scratch.opened) as inner:
            inner.take(of_steps)  # the largest
            with Scratch(scratch.opened) as masked:
                masked.take(of_steps)
                masked.take(batch * steps)
            inner.take(blanks)
            outer.take(of_steps)


def _take_lengths(scratch: Scratch, scores: torch.Tensor) -> None:
    batch = scores.shape[1] if scores.dim() == 3 else 1
    for _ in range(3):
        scratch.take(batch * 8)


def _multi_margin(
    given: torch.Tensor, target: torch.Tensor, p: complex = 1, margin: complex = 1, weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Return the loss of margins. The losses of rows are summed afterwards."""
    result: torch.Tensor = _compute_multi_margin(given, target, p, margin, weight, reduction)
    with Scratch(given.device) as scratch:
        for each in (given, target, weight):
            scratch.contiguous(each)
        if reduction and given.dim() == 2:
            scratch.take(given.shape[0] * given.itemsize)
    return result


def _multilabel_margin(
    given: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the loss and which classes are targets, which are allocated first."""
    loss, targets = _compute_multilabel(values_of(given), values_of(target), reduction)
    opened = open_torch_device(given.device)
    with Scratch(opened) as scratch:
        scratch.contiguous(target)
        scratch.contiguous(given)
        marked = adopt(targets.contiguous(), opened)
        if reduction and given.dim() == 2:
            scratch.take(given.shape[0] * given.itemsize)
        return adopt(loss, opened), marked


_compute_multi_margin = generic_kernel(_aten.multi_margin_loss.default, values.device)
_compute_multilabel = over_values(_aten.multilabel_margin_loss_forward.default)
_LARGE = 450  # a measure of a problem of CTC
_ALIGNMENTS = 4  # their place after the gradient and the scores
_FEW_INDICES = 3072
_compute_softmax_backward = generic_kernel(_aten._softmax_backward_data.default, values.device)
_compute_2d = over_values(_aten.nll_loss2d_forward.default)
_compute_log_sigmoid = over_values(_aten.log_sigmoid_forward.default)
_compute_log_sigmoid_backward = over_values(_aten.log_sigmoid_backward.default)
_compute_embedding_backward = generic_kernel(_aten.embedding_dense_backward.default, values.device)

LOSS_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_softmax": with_copy(_aten._softmax.default),
    "aten::_log_softmax": with_copy(_aten._log_softmax.default),
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": with_copy(_aten._log_softmax_backward_data.default, (0, 1)),
    "aten::nll_loss_backward": with_copy(_aten.nll_loss_backward.default, (2, 1, 3, 0)),
    "aten::nll_loss_forward": with_copy(_aten.nll_loss_forward.default, (0, 1, 2)),
    "aten::nll_loss2d_forward": _loss_2d,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::log_sigmoid_forward": _log_sigmoid,
    "aten::log_sigmoid_backward": _log_sigmoid_backward,
    "aten::_ctc_loss": _ctc(_aten._ctc_loss.default),
    "aten::_ctc_loss.Tensor": _ctc(_aten._ctc_loss.Tensor),
    "aten::_ctc_loss_backward": _ctc_backward(_aten._ctc_loss_backward.default),
    "aten::_ctc_loss_backward.Tensor": _ctc_backward(_aten._ctc_loss_backward.Tensor),
    "aten::multilabel_margin_loss_backward": with_copy(_aten.multilabel_margin_loss_backward.default, (0, 1, 2)),
    "aten::multi_margin_loss_backward": with_copy(_aten.multi_margin_loss_backward.default, (1, 0, 2, 5)),
    "aten::nll_loss2d_backward": with_copy(_aten.nll_loss2d_backward.default, (2, 3)),
    "aten::multi_margin_loss": _multi_margin,
    "aten::multilabel_margin_loss_forward": _multilabel_margin,
    "aten::mse_loss": _reduced_loss(_aten.mse_loss.default, result_first=True),
    "aten::smooth_l1_loss": _reduced_loss(_aten.smooth_l1_loss.default, result_first=True),
    "aten::huber_loss": _reduced_loss(_aten.huber_loss.default, result_first=False),
    "aten::binary_cross_entropy": _binary_cross_entropy,
}
