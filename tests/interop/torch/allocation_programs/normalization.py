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
