"""The operators of SyncBatchNorm: together, those of batch normalization."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

SHAPES = {"rows": (12, 6), "images": (4, 6, 5, 3), "volumes": (4, 6, 2, 3, 3)}


def expected(given, outer, dtype):
    """Return results, gradients and running statistics of batch normalization on the CPU."""
    layer = torch.nn.BatchNorm1d(given.shape[1], dtype=dtype)
    torch.nn.init.normal_(layer.weight)
    leaf = given.clone().requires_grad_()
    result = torch.nn.functional.batch_norm(
        leaf, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=True
    )
    result.backward(outer)
    return layer, (result.detach(), leaf.grad, layer.weight.grad, layer.bias.grad)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("parts", [1, 2])
def test_the_parts_of_an_input_are_normalized_together(emulated, shape, parts):
    torch.manual_seed(3)
    given, outer = torch.randn(shape), torch.randn(shape)
    layer, values = expected(given, outer, torch.float32)
    given, outer, weight, bias = (each.detach().cuda() for each in (given, outer, layer.weight, layer.bias))
    inputs, gradients = given.chunk(parts), outer.chunk(parts)
    means, scales = (torch.stack(each) for each in zip(*(torch.batch_norm_stats(x, 1e-5) for x in inputs), strict=True))
    running = torch.zeros(6, device="cuda"), torch.ones(6, device="cuda")
    counts = torch.full((parts,), given.numel() / 6 / parts, device="cuda")
    mean, scale = torch.batch_norm_gather_stats_with_counts(inputs[0], means, scales, *running, 0.1, 1e-5, counts)
    result = torch.cat([torch.batch_norm_elemt(each, weight, bias, mean, scale, 1e-5) for each in inputs])
    sums = [
        torch.batch_norm_backward_reduce(gradient, x, mean, scale, weight, True, True, True)
        for gradient, x in zip(gradients, inputs, strict=True)
    ]
    total, products, of_weight, of_bias = (sum(each) for each in zip(*sums, strict=True))
    of_input = torch.cat([
        torch.batch_norm_backward_elemt(gradient, x, mean, scale, weight, total, products, counts.int())
        for gradient, x in zip(gradients, inputs, strict=True)
    ])  # fmt: skip
    for ours, theirs in zip((result, of_input, of_weight, of_bias), values, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(running, (layer.running_mean, layer.running_var), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_one_count_for_all_parts(emulated):
    given = torch.randn(8, 3, device="cuda")
    means, scales = (torch.stack([each]) for each in torch.batch_norm_stats(given, 1e-5))
    mean, scale = torch.batch_norm_gather_stats(given, means, scales, None, None, 0.1, 1e-5, 8)
    torch.testing.assert_close(torch.stack([mean, scale]), torch.cat([means, scales]))


def test_statistics_of_halves_have_single_precision(emulated):
    given = torch.ones(4, 3, device="cuda", dtype=torch.float16)
    assert [each.dtype for each in torch.batch_norm_stats(given, 1e-5)] == [torch.float32] * 2
    assert torch.batch_norm_elemt(given, None, None, *torch.ones(2, 3, device="cuda"), 1e-5).dtype == torch.float16


def test_results_are_written_where_the_program_says(emulated):
    given, mean = torch.randn(4, 3, device="cuda"), torch.ones(3, device="cuda")
    out = torch.empty(0, device="cuda")
    assert torch.batch_norm_elemt(given, None, None, mean, mean, 1e-5, out=out) is out
    torch.testing.assert_close(out, given - 1)


def test_errors_are_pytorchs(emulated):
    given, mean = torch.ones(4, 3, device="cuda"), torch.ones(3, device="cuda")
    with pytest.raises(NotImplementedError, match="\"batch_norm_stats_cuda\" not implemented for 'Int'"):
        torch.batch_norm_stats(given.int(), 1e-5)
    wide = torch.ones(4, 3, 5, device="cuda")
    with pytest.raises(RuntimeError, match="tensor does not have a device"):
        torch.batch_norm_backward_reduce(wide, wide, mean, mean, None, False, True, True)
    with pytest.raises(RuntimeError, match="Expected weight to have type Float but got Half"):
        torch.batch_norm_backward_elemt(given, given, mean, mean, mean.half(), mean, mean, mean.int())


def test_only_shapes_are_computed_without_values(shapes_only):
    given = torch.ones(4, 3, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    mean, scale = torch.batch_norm_stats(given, 1e-5)
    result = torch.batch_norm_elemt(given, None, None, mean, scale, 1e-5)
    assert result.shape == given.shape
    assert result.is_contiguous(memory_format=torch.channels_last)
