"""Scaled dot product attention: the implementation that is chosen, its statistics and its gradients."""


def _attention(torch, dtype, *, size=64, shape=(2, 4, 16), gradients=True, keys=None, **options):
    queries = torch.ones(*shape, size, device="cuda", dtype=dtype, requires_grad=gradients)
    others = torch.ones(*shape[:2], keys or shape[2], size, device="cuda", dtype=dtype, requires_grad=gradients)
    result = torch.nn.functional.scaled_dot_product_attention(queries, others, others, **options)
    if gradients:
        result.sum().backward()
    return result, queries, others


def single_precision(torch):
    return _attention(torch, torch.float32)


def single_precision_causal(torch):
    return _attention(torch, torch.float32, is_causal=True)


def single_precision_without_gradients(torch):
    return _attention(torch, torch.float32, gradients=False), _attention(
        torch, torch.float32, gradients=False, is_causal=True
    )


def single_precision_other_lengths(torch):
    return _attention(torch, torch.float32, keys=33, gradients=False), _attention(
        torch, torch.float32, shape=(2, 3, 70), keys=129
    )


def single_precision_head_sizes(torch):
    return [_attention(torch, torch.float32, size=size) for size in (1, 5, 8, 30, 80, 128, 130, 256, 300)]


def single_precision_dropout(torch):
    return _attention(torch, torch.float32, dropout_p=0.5)


def single_precision_mask(torch):
    mask = torch.ones(16, 16, device="cuda")
    return _attention(torch, torch.float32, attn_mask=mask), _attention(torch, torch.float32, attn_mask=mask > 0)


def single_precision_unaligned_mask(torch):
    mask = torch.ones(2, 1, 15, 15, device="cuda")
    return _attention(torch, torch.float32, shape=(2, 4, 15), attn_mask=mask)


def single_precision_mask_with_gradient(torch):
    mask = torch.ones(16, 16, device="cuda", requires_grad=True)
    return _attention(torch, torch.float32, attn_mask=mask)


def _flash(torch):
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)


def _without_cudnn(torch):
    import torch.nn.attention as choice

    return choice.sdpa_kernel(
        [choice.SDPBackend.FLASH_ATTENTION, choice.SDPBackend.EFFICIENT_ATTENTION, choice.SDPBackend.MATH]
    )


def flash(torch):
    with _without_cudnn(torch):
        return _attention(torch, torch.bfloat16)


def flash_causal(torch):
    with _without_cudnn(torch):
        return _attention(torch, torch.float16, is_causal=True)


def flash_without_gradients(torch):
    with _without_cudnn(torch):
        return _attention(torch, torch.bfloat16, gradients=False)


def flash_head_sizes(torch):
    with _without_cudnn(torch):
        return [
            _attention(torch, torch.bfloat16, size=size)
            for size in (1, 5, 8, 30, 32, 80, 96, 128, 130, 160, 192, 224, 256, 264, 300)
        ]


def flash_other_lengths(torch):
    with _without_cudnn(torch):
        return (
            _attention(torch, torch.bfloat16, keys=33, gradients=False),
            _attention(torch, torch.bfloat16, shape=(2, 3, 70), keys=129),
            _attention(torch, torch.bfloat16, shape=(1, 3, 1), keys=2000),
            _attention(torch, torch.bfloat16, shape=(8, 16, 1024)),
        )


def flash_dropout(torch):
    with _without_cudnn(torch):
        return _attention(torch, torch.bfloat16, dropout_p=0.5), _attention(
            torch, torch.bfloat16, gradients=False, dropout_p=0.5
        )


def flash_refused_by_mask(torch):
    with _without_cudnn(torch):
        mask = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
        return _attention(torch, torch.bfloat16, attn_mask=mask), _attention(torch, torch.bfloat16, attn_mask=mask > 0)


def chosen_math(torch):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return (
            _attention(torch, torch.float32),
            _attention(torch, torch.bfloat16),
            _attention(torch, torch.float32, is_causal=True),
        )


def chosen_efficient(torch):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        return (
            _attention(torch, torch.float32),
            _attention(torch, torch.bfloat16),
            _attention(torch, torch.float16, is_causal=True),
        )


def double_precision(torch):
    return _attention(torch, torch.float64)


def transposed_heads(torch):
    """The layout of models: batch, time, heads, size."""
    joined = torch.ones(2, 16, 3 * 128, device="cuda", requires_grad=True)
    queries, keys, values = (each.view(2, 16, 2, 64).transpose(1, 2) for each in joined.split(128, dim=2))
    result = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    result.transpose(1, 2).contiguous().view(2, 16, 128).sum().backward()
    return joined, result


def transposed_heads_flash(torch):
    with _without_cudnn(torch):
        joined = torch.ones(2, 16, 3 * 128, device="cuda", requires_grad=True, dtype=torch.bfloat16)
        queries, keys, values = (each.view(2, 16, 2, 64).transpose(1, 2) for each in joined.split(128, dim=2))
        result = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        result.transpose(1, 2).contiguous().view(2, 16, 128).sum().backward()
        return joined, result


def grouped_queries(torch):
    queries = torch.ones(2, 8, 16, 64, device="cuda", dtype=torch.bfloat16)
    keys = torch.ones(2, 2, 16, 64, device="cuda", dtype=torch.bfloat16)
    with _without_cudnn(torch):
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, keys, enable_gqa=True)


def multi_head_attention(torch):
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True, device="cuda")
    given = torch.ones(2, 10, 64, device="cuda")
    layer(given, given, given, need_weights=False)[0].sum().backward()
    layer(given, given, given)[0].sum().backward()
    return layer


def encoder_layer(torch):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device="cuda")
    layer(torch.ones(2, 10, 64, device="cuda")).sum().backward()
    return layer


def _packed(torch, heads_of_keys, dtype):
    starts = torch.tensor([0, 30, 80], dtype=torch.int32).cuda()
    query, gradient = (torch.ones(80, 4, 64, device="cuda", dtype=dtype) for _ in range(2))
    key, value = (torch.ones(80, heads_of_keys, 64, device="cuda", dtype=dtype) for _ in range(2))
    return starts, query, key, value, gradient


def packed_flash_attention(torch):
    aten, found = torch.ops.aten, []
    for heads in (4, 2):
        for dropout in (0.0, 0.1):
            starts, query, key, value, gradient = _packed(torch, heads, torch.bfloat16)
            options = (starts, starts, 50, 50, dropout, True)
            result = aten._flash_attention_forward(query, key, value, *options, False)
            given = (gradient, query, key, value, *result[:2])
            found += [result, aten._flash_attention_backward(*given, *options, *result[2:4])]
    return found


def packed_efficient_attention(torch):
    aten, found = torch.ops.aten, []
    for dtype in (torch.float32, torch.bfloat16):
        for dropout in (0.0, 0.1):
            starts, *tensors = _packed(torch, 4, dtype)
            query, key, value, gradient = (each[None] for each in tensors)
            result = aten._efficient_attention_forward(
                query, key, value, None, starts, starts, 50, 50, dropout, 1, True
            )
            gradients = aten._efficient_attention_backward(
                gradient, query, key, value, None, result[0], starts, starts, 50, 50, *result[1:2], dropout,
                *result[2:4], 1, False,
            )  # fmt: skip
            dense = query.view(2, 40, 4, 64)
            found += [
                result, gradients,
                aten._efficient_attention_forward(dense, dense, dense, None, None, None, 40, 40, 0.0, 0, False),
            ]  # fmt: skip
    return found
