"""Limits of element types: `torch.finfo` and `torch.iinfo`."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay._base import dtypes
from forebay._base.dtypes import DType

__all__ = ["finfo", "iinfo"]


class _TypeInfo:
    """Base class of both. Objects of one type are equal."""

    type: DType

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return self.type.itemsize * 8

    @property
    def dtype(self) -> str:
        """The name of the type."""
        return self.type.dtype.name

    def __eq__(self, other: object) -> bool:
        return self.type == other.type if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.type)

    def _repr(self, *names: str) -> str:
        values = ", ".join(f"{name}={float(getattr(self, name)):g}" for name in names)
        return f"{type(self).__name__}({values}, dtype={self.dtype})"


def _checked(name: str, type_: Any) -> DType:
    if not isinstance(type_, DType):
        raise TypeError(f"{name}(): argument 'type' (position 1) must be forebay.dtype, not {type(type_).__name__}")
    return type_


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.name != "bfloat16":
        return np.finfo(dtype)
    from ml_dtypes import finfo as ml_finfo

    return ml_finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes is not typed


class finfo(_TypeInfo):  # noqa: N801 -- PyTorch's name
    """The limits of a floating-point type.

    As `torch.finfo`.

    Parameters
    ----------
    type : dtype, optional
        The type; float32 by default. For a complex type, that of its parts.

    Examples
    --------
    >>> import forebay
    >>> forebay.finfo(forebay.float16).max
    65504.0
    """

    def __init__(self, type: DType = dtypes.float32) -> None:  # noqa: A002 -- PyTorch's name
        found = _checked("finfo", type)
        if not (found.is_floating_point or found.is_complex):
            raise TypeError(
                "forebay.finfo() requires a floating point input type. Use forebay.iinfo to handle 'forebay.finfo'"
            )
        self.type: DType = found.to_real()
        self._limits: Any = _finfo(self.type.dtype)

    @property
    def eps(self) -> float:
        """The difference between 1 and the next larger number."""
        return float(self._limits.eps)

    @property
    def max(self) -> float:
        """The largest number."""
        return float(self._limits.max)

    @property
    def min(self) -> float:
        """The smallest number, which is negative."""
        return float(self._limits.min)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number."""
        return float(self._limits.smallest_normal)

    @property
    def tiny(self) -> float:
        """The smallest positive normal number."""
        return self.smallest_normal

    @property
    def resolution(self) -> float:
        """The power of ten that the type can represent next to 1."""
        return float(f"1e-{self._limits.precision}")

    def __repr__(self) -> str:
        return self._repr("resolution", "min", "max", "eps", "smallest_normal", "tiny")


class iinfo(_TypeInfo):  # noqa: N801 -- PyTorch's name
    """The limits of an integer type.

    As `torch.iinfo`.

    Parameters
    ----------
    type : dtype
        The type.
    """

    def __init__(self, type: DType) -> None:  # noqa: A002 -- PyTorch's name
        self.type: DType = _checked("iinfo", type)
        if self.type.is_floating_point or self.type.is_complex:
            raise TypeError(
                "forebay.iinfo() requires an integer input type. Use forebay.finfo to handle 'forebay.iinfo'"
            )
        if self.dtype == "bool":
            raise TypeError("forebay.bool is not supported by forebay.iinfo")
        self._limits = np.iinfo(self.type.dtype)

    @property
    def max(self) -> int:
        """The largest number."""
        return int(self._limits.max)

    @property
    def min(self) -> int:
        """The smallest number."""
        return int(self._limits.min)

    def __repr__(self) -> str:
        return self._repr("min", "max")


for _type in (finfo, iinfo):
    _type.__module__ = "forebay"
