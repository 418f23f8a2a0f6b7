"""Element types under PyTorch's names, each over a NumPy dtype."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = [
    "NAMES",
    "DType",
    "DTypeLike",
    "as_dtype",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "named",
    "of",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

_TORCH_NAMES = {
    "bool": "bool",
    **{name: name for bits in (8, 16, 32, 64) for name in (f"uint{bits}", f"int{bits}")},
    **{name: name for name in ("float16", "float32", "float64", "complex64", "complex128")},
}
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPLEX = {real: name for name, real in _REAL.items()}
NAMES = frozenset({*_TORCH_NAMES, *_ALIASES, "bfloat16"})


class DType:
    """An element type of tensors.

    It equals the NumPy dtype that it stands for, and NumPy accepts it in that dtype's place.

    As `torch.dtype`. Instances are constants of the package, such as `forebay.float32`; the class has no public
    constructor.

    Examples
    --------
    >>> import forebay, numpy
    >>> forebay.float32, forebay.float32.itemsize, forebay.float32 == numpy.float32
    (forebay.float32, 4, True)
    """

    __slots__ = ("__weakref__", "dtype")
    dtype: np.dtype[Any]

    def __init__(self) -> None:
        raise TypeError("cannot create 'forebay.dtype' instances")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def is_floating_point(self) -> bool:
        """True for real floating-point types."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def is_complex(self) -> bool:
        """True for complex types."""
        return self.dtype.kind == "c"

    @property
    def is_signed(self) -> bool:
        """True for types with negative values."""
        return self.dtype.kind not in "bu"

    def to_real(self) -> DType:
        """Return the type of the real part; the type itself if it is not complex."""
        return named(_REAL[self.dtype.name]) if self.dtype.name in _REAL else self

    def to_complex(self) -> DType:
        """Return the complex type whose real part has this type.

        Raises
        ------
        TypeError
            If there is no such type.
        """
        if self.dtype.name not in _COMPLEX and not self.is_complex:
            raise TypeError(f"to_complex() has no complex type for {self!r}")
        return self if self.is_complex else named(_COMPLEX[self.dtype.name])

    def __eq__(self, other: object) -> bool:
        if other.__class__ is DType:
            return self is other or self.dtype == other.dtype
        if isinstance(other, (np.dtype, type)):
            return bool(self.dtype == other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return of, (self.dtype,)

    def __repr__(self) -> str:
        return f"forebay.{self.dtype.name}"


DType.__module__, DType.__name__, DType.__qualname__ = "forebay", "dtype", "dtype"  # its public name
DTypeLike = Any  # what `as_dtype` takes: a dtype of forebay or NumPy, a Python type, a name

_made: dict[np.dtype[Any], DType] = {}


def of(array_type: np.dtype[Any]) -> DType:
    """Return the one `dtype` object for a NumPy dtype."""
    found = _made.get(array_type)
    if found is None:
        made = object.__new__(DType)
        made.dtype = array_type
        found = _made.setdefault(array_type, made)
    return found


def named(name: str) -> DType:
    """Return the type of a PyTorch name, such as `"float32"` or `"long"`.

    Raises
    ------
    AttributeError
        If the name is unknown, or is `"bfloat16"` and ml_dtypes is not installed.
    """
    name = _ALIASES.get(name, name)
    if name in _TORCH_NAMES:
        return of(np.dtype(_TORCH_NAMES[name]))
    if name != "bfloat16":
        raise AttributeError(f"there is no dtype {name!r}")
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise AttributeError("bfloat16 needs ml_dtypes: pip install ml_dtypes") from error
    return of(np.dtype(bfloat16))


def as_dtype(like: DTypeLike | None) -> np.dtype[Any]:
    """Return the NumPy dtype of a type specification; float32 for None, as in PyTorch.

    Raises
    ------
    TypeError
        If NumPy does not know the type, or a device cannot store its elements: Python objects, elements without a
        size, and sub-arrays.
    """
    if like is None:
        return _FLOAT32
    if like.__class__ is DType:
        return like.dtype
    found: np.dtype[Any] = named("bfloat16").dtype if isinstance(like, str) and like == "bfloat16" else np.dtype(like)
    if found.hasobject:
        raise TypeError(f"a device cannot hold Python objects, so dtype {found} has no tensor")
    if not found.itemsize or found.subdtype:
        raise TypeError(f"dtype {found} does not define the size of one element, so it has no tensor")
    return found


_FLOAT32 = np.dtype("f4")
uint8: Final = of(np.dtype("uint8"))
uint16: Final = of(np.dtype("uint16"))
uint32: Final = of(np.dtype("uint32"))
uint64: Final = of(np.dtype("uint64"))
int8: Final = of(np.dtype("int8"))
int16: Final = of(np.dtype("int16"))
int32: Final = of(np.dtype("int32"))
int64: Final = of(np.dtype("int64"))
float16: Final = of(np.dtype("float16"))
float32: Final = of(np.dtype("float32"))
float64: Final = of(np.dtype("float64"))
complex64: Final = of(np.dtype("complex64"))
complex128: Final = of(np.dtype("complex128"))
