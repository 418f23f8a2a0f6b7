"""Operators of PyTorch's operator database whose values cannot be compared."""

from __future__ import annotations

__all__ = ["RANDOM_OPERATORS", "UNDEFINED_OPERATORS"]

RANDOM_OPERATORS = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal.in_place",
    "normal.number_mean", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention",
)  # fmt: skip
UNDEFINED_OPERATORS = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
