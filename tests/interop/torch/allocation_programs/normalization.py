"""Normalizations and dropout: statistics in single precision, and the buffers of their gradients."""


def _with_gradients(torch, layer, given):
    given.requires_grad_()
    result = layer(given)
    result.sum().backward()
    return layer, given, result


def layer_norm(torch):
    return _with_gradients(torch, torch.nn.LayerNorm(64, device="cuda"), torch.ones(4, 10, 64, device="cuda"))


def layer_norm_of_halves(torch):
    return [
        _with_gradients(
            torch, torch.nn.LayerNorm(64, device="cuda", dtype=dtype), torch.ones(4, 10, 64, device="cuda", dtype=dtype)
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float64)
    ]


def layer_norm_without_weights(torch):
    return (
        _with_gradients(
            torch, torch.nn.LayerNorm(64, device="cuda", elementwise_affine=False), torch.ones(4, 64, device="cuda")
        ),
        _with_gradients(torch, torch.nn.LayerNorm(64, device="cuda", bias=False), torch.ones(4, 64, device="cuda")),
    )


def layer_norm_of_many_rows(torch):
    return [
        _with_gradients(torch, torch.nn.LayerNorm(size, device="cuda"), torch.ones(rows, size, device="cuda"))
        for rows, size in ((1, 64), (512, 64), (4096, 768), (3000, 100), (70000, 33), (128, 12000))
    ]


def layer_norm_with_autocast(torch):
    layer = torch.nn.LayerNorm(64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = layer(torch.ones(4, 64, device="cuda", dtype=torch.bfloat16))
    result.sum().backward()
    return layer, result


def layer_norm_without_gradients(torch):
    return torch.nn.functional.layer_norm(torch.ones(4, 64, device="cuda"), (64,)), torch.nn.functional.layer_norm(
        torch.ones(4, 8, 8, device="cuda"), (8, 8)
    )


def rms_norm(torch):
    return _with_gradients(torch, torch.nn.RMSNorm(64, device="cuda"), torch.ones(4, 10, 64, device="cuda"))


def rms_norm_of_halves(torch):
    return [
        _with_gradients(
            torch, torch.nn.RMSNorm(64, device="cuda", dtype=dtype), torch.ones(4, 10, 64, device="cuda", dtype=dtype)
        )
        for dtype in (torch.bfloat16, torch.float16)
    ]


def rms_norm_without_weights(torch):
    return _with_gradients(
        torch, torch.nn.RMSNorm(64, device="cuda", elementwise_affine=False), torch.ones(4, 64, device="cuda")
    )


def group_norm(torch):
    return _with_gradients(torch, torch.nn.GroupNorm(2, 8, device="cuda"), torch.ones(3, 8, 5, 5, device="cuda"))


def group_norm_of_halves(torch):
    return _with_gradients(
        torch,
        torch.nn.GroupNorm(2, 8, device="cuda", dtype=torch.bfloat16),
        torch.ones(3, 8, 5, 5, device="cuda", dtype=torch.bfloat16),
    )


def group_norm_channels_last(torch):
    given = torch.ones(3, 8, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    return _with_gradients(torch, torch.nn.GroupNorm(2, 8, device="cuda"), given)


def group_norm_without_weights(torch):
    return _with_gradients(
        torch, torch.nn.GroupNorm(2, 8, affine=False, device="cuda"), torch.ones(3, 8, 5, 5, device="cuda")
    )


def dropout(torch):
    given = torch.ones(4, 64, device="cuda", requires_grad=True)
    result = torch.nn.functional.dropout(given, 0.5)
    result.sum().backward()
    return (
        result,
        given,
        torch.nn.functional.dropout(given, 0.5, training=False),
        torch.nn.functional.dropout(given, 0.0),
        torch.nn.functional.dropout(given.detach(), 0.3),
    )


def dropout_inplace(torch):
    given = torch.ones(4, 64, device="cuda")
    return torch.nn.functional.dropout(given, 0.5, inplace=True), torch.nn.functional.dropout2d(
        torch.ones(2, 3, 4, 4, device="cuda"), 0.5
    )


def normalize(torch):
    return _with_gradients(torch, torch.nn.functional.normalize, torch.ones(4, 64, device="cuda"))


def _without_cudnn(torch):
    return torch.backends.cudnn.flags(enabled=False)


def batch_norm(torch):
    with _without_cudnn(torch):
        return _with_gradients(torch, torch.nn.BatchNorm2d(8, device="cuda"), torch.ones(3, 8, 5, 5, device="cuda"))


def batch_norm_of_halves(torch):
    with _without_cudnn(torch):
        return _with_gradients(
            torch, torch.nn.BatchNorm2d(8, device="cuda"), torch.ones(3, 8, 5, 5, device="cuda", dtype=torch.bfloat16)
        )


def batch_norm_channels_last(torch):
    with _without_cudnn(torch):
        given = torch.ones(3, 8, 5, 5, device="cuda").to(memory_format=torch.channels_last)
        return _with_gradients(torch, torch.nn.BatchNorm2d(8, device="cuda"), given)


def batch_norm_evaluated(torch):
    with _without_cudnn(torch):
        return _with_gradients(
            torch, torch.nn.BatchNorm2d(8, device="cuda").eval(), torch.ones(3, 8, 5, 5, device="cuda")
        )


def batch_norm_1d(torch):
    with _without_cudnn(torch):
        return _with_gradients(
            torch, torch.nn.BatchNorm1d(8, device="cuda"), torch.ones(30, 8, device="cuda")
        ), _with_gradients(
            torch, torch.nn.BatchNorm1d(8, device="cuda", affine=False), torch.ones(30, 8, 3, device="cuda")
        )


def instance_norm(torch):
    with _without_cudnn(torch):
        return _with_gradients(torch, torch.nn.InstanceNorm2d(8, device="cuda"), torch.ones(3, 8, 5, 5, device="cuda"))


def batch_norm_channels_last_of_many_rows(torch):
    with _without_cudnn(torch):
        return [
            _with_gradients(
                torch,
                torch.nn.BatchNorm2d(shape[1], device="cuda", dtype=dtype),
                torch.ones(shape, device="cuda", dtype=dtype).to(memory_format=torch.channels_last),
            )
            for shape, dtype in (
                ((8, 16, 32, 32), torch.float32), ((64, 3, 56, 56), torch.float32), ((16, 64, 56, 56), torch.float16),
            )
        ]  # fmt: skip


def batch_norm_of_strided_inputs(torch):
    with _without_cudnn(torch):
        found = []
        for affine in (True, False):
            layer = torch.nn.BatchNorm1d(8, affine=affine, device="cuda")
            given = torch.ones(30, 5, 8, device="cuda").transpose(1, 2)
            found.append((layer(given), layer.eval()(given)))
        return found


def batch_norm_channels_last_with_such_gradients(torch):
    with _without_cudnn(torch):
        layer = torch.nn.BatchNorm2d(16, device="cuda")
        given = torch.ones(8, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
        result = layer(given)
        result.backward(torch.ones_like(result))
        return layer, given, result


def _synchronized(torch, given, weight, gradient):
    mean, scale = torch.batch_norm_stats(given, 1e-5)
    means, scales, counts = torch.stack([mean] * 2), torch.stack([scale] * 2), mean.new_ones(2)
    running = [torch.zeros_like(mean) for _ in range(2)]
    total = torch.batch_norm_gather_stats_with_counts(given, means, scales, *running, 0.1, 1e-5, counts)
    result = torch.batch_norm_elemt(given, weight, weight, *total, 1e-5)
    sums = torch.batch_norm_backward_reduce(gradient, given, *total, weight, True, True, True)
    number = torch.ones(2, device="cuda", dtype=torch.int32)
    return result, sums, torch.batch_norm_backward_elemt(gradient, given, *total, weight, *sums[:2], number)


def synchronized_batch_norm(torch):
    found = []
    for shape in ((4, 8, 5, 5), (4, 8), (8, 16, 32, 32), (64, 3, 56, 56), (2, 4, 3, 8, 8)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            weight = torch.ones(shape[1], device="cuda")
            given, gradient = (torch.ones(shape, device="cuda", dtype=dtype) for _ in range(2))
            found.append(_synchronized(torch, given, weight, gradient))
            if len(shape) == 4:
                given, gradient = (each.to(memory_format=torch.channels_last) for each in (given, gradient))
                found.append(_synchronized(torch, given, weight, gradient))
    return found


def parts_of_synchronized_batch_norm(torch):
    given, mean = torch.ones(4, 8, 5, device="cuda"), torch.ones(8, device="cuda")
    masks = [(True, False, False), (False, False, False)]
    return [
        torch.batch_norm_gather_stats(
            given, torch.stack([mean] * 2), torch.stack([mean] * 2), None, None, 0.1, 1e-5, 4
        ),
        torch.batch_norm_update_stats(given, mean, mean, 0.1),
        torch.batch_norm_elemt(given.transpose(0, 2), None, None, torch.ones(8, device="cuda"), mean, 1e-5),
        [torch.batch_norm_backward_reduce(given, given, mean, mean, None, *mask) for mask in masks],
        torch.batch_norm_elemt(given, None, None, mean, mean, 1e-5, out=torch.empty(0, device="cuda")),
    ]
