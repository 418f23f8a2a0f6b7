"""PyTorch's setting of the precision of matrix products. It is stored; there are no matrix products here."""

from __future__ import annotations

import warnings

from forebay.errors import ForebayError, ForebayWarning

__all__ = ["get_float32_matmul_precision", "set_float32_matmul_precision"]

_NAMES = ("highest", "high", "medium")
_precision = "highest"


def get_float32_matmul_precision() -> str:
    """Return the precision of float32 matrix products: `"highest"`, `"high"` or `"medium"`.

    As `torch.get_float32_matmul_precision`. The setting has no effect.
    """
    return _precision


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 matrix products.

    As `torch.set_float32_matmul_precision`. The setting has no effect.

    Parameters
    ----------
    precision : str
        `"highest"`, `"high"` or `"medium"`; another text warns.

    Raises
    ------
    ForebayError
        If `precision` is not a string.

    Warns
    -----
    ForebayWarning
        If `precision` is unknown; nothing is set then.
    """
    global _precision  # noqa: PLW0603 -- a setting of the process
    if not isinstance(precision, str):
        raise ForebayError(f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}")
    if precision in _NAMES:
        _precision = precision
    else:
        text = f"{precision} is not one of 'highest', 'high', or 'medium'; the current setting remains."
        warnings.warn(text, ForebayWarning, stacklevel=2)
