"""Sparse matrices of dense blocks, row by row (BSR), and their products with dense matrices, computed in queues.

By SciPy where it is installed (the extra `sparse`), else by NumPy; 16-bit floats are added up as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.device_spec import Device
from forebay.runtime.streams.stream import stream_of
from forebay.runtime.tensors.creation import tensor
from forebay.runtime.tensors.queued_numpy import Arrays, together
from forebay.runtime.tensors.tensor import Tensor, new_tensor

__all__ = ["BsrTensor", "bsr_dense_addmm", "bsr_dense_mm", "product_by_numpy"]


@dataclass(frozen=True, eq=False)
class BsrTensor:
    """A matrix of blocks: row `i` of them has those from number `crow_indices[i]` to before `crow_indices[i + 1]`.

    `values[n]` is a block, `col_indices[n]` its column. With batch dimensions all four have them in front. Raises
    ValueError for shapes, dtypes and devices that do not fit; whether the indices do, `check` finds out.

    >>> import numpy as np, forebay
    >>> blocks = np.array([[[1.0, 2.0], [3.0, 4.0]]], "f4")
    >>> bsr = BsrTensor(*map(forebay.tensor, ([0, 1, 1], [1], blocks)), shape=(4, 4))
    >>> bsr.numpy()[0].tolist()
    [0.0, 0.0, 1.0, 2.0]
    """

    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        crow, col, values = self.crow_indices, self.col_indices, self.values
        object.__setattr__(self, "shape", tuple(self.shape))
        _expect(len({crow.device, col.device, values.device}) == 1, "all parts of a BSR tensor are on one device")
        _expect(crow.dtype == col.dtype and crow.dtype.name in ("int32", "int64"), "indices are both int32 or int64")
        _expect(len(self.shape) >= 2 and min(self.shape) >= 0, f"{self.shape} is not the shape of a matrix")
        batch = self.shape[:-2]
        _expect(
            crow.ndim == col.ndim == len(batch) + 1 and values.ndim == len(batch) + 3,
            f"for the shape {self.shape}, indices have {len(batch) + 1} dimensions and values {len(batch) + 3}",
        )
        heads = crow.shape[:-1], col.shape[:-1], values.shape[:-3]
        _expect(all(head == batch for head in heads), f"batch dimensions differ: {batch} and {heads}")
        _expect(0 not in self.blocksize, f"blocks of {self.blocksize} have no elements")
        whole = all(length % part == 0 for length, part in zip(self.shape[-2:], self.blocksize, strict=True))
        _expect(whole, f"a matrix of {self.shape[-2:]} is not made of blocks of {self.blocksize}")
        rows = self.shape[-2] // self.blocksize[0]
        _expect(crow.shape[-1] == rows + 1, f"{rows} rows of blocks have {rows + 1} crow_indices, not {crow.shape[-1]}")
        _expect(col.shape[-1] == values.shape[-3], "there is one column index for each block")

    @property
    def device(self) -> Device:
        return self.values.device

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def blocksize(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.values.shape[-2], self.values.shape[-1]

    @property
    def nnz(self) -> int:
        """Blocks of each matrix."""
        return self.col_indices.shape[-1]

    def parts(self) -> list[Tensor]:
        return [self.crow_indices, self.col_indices, self.values]

    def check(self) -> None:
        """Waits, and raises ValueError where an index is none."""
        parts = [part.cpu().numpy() for part in self.parts()]
        for batch in np.ndindex(self.shape[:-2]):
            _check_indices(parts[0][batch], parts[1][batch], self.shape[-1] // self.blocksize[1])

    def numpy(self) -> NDArray[Any]:
        """All elements, zeros too, in host memory."""
        self.check()
        crow, col, values = (part.cpu().numpy() for part in self.parts())
        whole = np.zeros(self.shape, self.dtype)
        high, wide = self.blocksize
        for batch in np.ndindex(self.shape[:-2]):
            for row in range(self.shape[-2] // high):
                for n in range(crow[batch][row], crow[batch][row + 1]):
                    left = col[batch][n] * wide
                    whole[batch][row * high : (row + 1) * high, left : left + wide] += values[batch][n]
        return whole

    @classmethod
    def from_scipy(cls, matrix: Any, device: Device | str | None = None) -> BsrTensor:
        """A copy of a matrix of SciPy's, of its own block size if it is of this format."""
        matrix = matrix.tobsr()
        crow, col, values = (
            tensor(np.ascontiguousarray(part), device=device) for part in (matrix.indptr, matrix.indices, matrix.data)
        )
        return cls(crow, col, values, matrix.shape)

    def to_scipy(self) -> Any:
        """A `scipy.sparse.bsr_matrix` in host memory; of 16-bit floats it is float32. ValueError for batches."""
        from scipy.sparse import bsr_matrix

        _expect(len(self.shape) == 2, "SciPy knows no batches of matrices")
        self.check()
        crow, col, values = (part.cpu().numpy() for part in self.parts())
        return bsr_matrix((values.astype(_wide(self.dtype)), col, crow), shape=self.shape)


def bsr_dense_mm(bsr: BsrTensor, dense: Tensor, *, out: Tensor | None = None, skip_checks: bool = False) -> Tensor:
    """The product of each matrix with each dense one, batch dimensions broadcast; queued, and given in `out` if given.

    Raises ValueError where shapes, dtypes or devices do not fit, unless that is skipped. Indices that are none fail in
    the queue. (`torch.sparse._triton_ops.bsr_dense_mm`)
    """
    shape = _shape("bsr_dense_mm", bsr, dense, out, skip_checks=skip_checks)
    out = new_tensor(shape, dense.dtype, dense.device) if out is None else out
    return _queue(out, bsr, dense, out, 0, 1)


def bsr_dense_addmm(
    input: Tensor,  # noqa: A002 -- PyTorch's name
    bsr: BsrTensor,
    dense: Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
    out: Tensor | None = None,
    skip_checks: bool = False,
) -> Tensor:
    """`beta * input + alpha * (bsr @ dense)`, where a factor of 0 ignores even NaN; else as `bsr_dense_mm`."""
    shape = _shape("bsr_dense_addmm", bsr, dense, out, skip_checks=skip_checks)
    if not skip_checks:
        _expect(input.dtype == dense.dtype and input.device == dense.device, "bsr_dense_addmm(): input is unlike dense")
        lengths = zip(input.shape[::-1], shape[::-1], strict=False)
        fits = input.ndim <= len(shape) and all(mine in (1, theirs) for mine, theirs in lengths)
        _expect(fits, f"bsr_dense_addmm(): input of shape {input.shape} does not broadcast to {shape}")
    out = new_tensor(shape, dense.dtype, dense.device) if out is None else out
    return _queue(input, bsr, dense, out, beta, alpha)


def _shape(name: str, bsr: BsrTensor, dense: Tensor, out: Tensor | None, *, skip_checks: bool) -> tuple[int, ...]:
    """Of the result. The words are PyTorch's."""
    if not skip_checks:
        _expect(isinstance(bsr, BsrTensor), f"{name}(): only BSR sparse format is supported for the sparse argument.")
        _expect(bsr.device == dense.device, f"{name}(): all inputs are expected to be on the same GPU device.")
        _expect(
            bsr.dtype == dense.dtype and dense.dtype.kind not in "bc",
            f"{name}(): all inputs are expected to be of the same dtype, and not complex or bool, "
            f"but got dtype == {bsr.dtype} and {dense.dtype}.",
        )
        _expect(
            dense.ndim >= 2,
            f"{name}(): all inputs involved in the matrix product are expected to be at least 2D, "
            f"but got lhs.dim() == {len(bsr.shape)} and rhs.dim() == {dense.ndim}.",
        )
        _expect(
            bsr.shape[-1] == dense.shape[-2],
            f"{name}(): arguments' sizes involved in the matrix product are not compatible for matrix multiplication, "
            f"got lhs.shape[-1] == {bsr.shape[-1]} which is not equal to rhs.shape[-2] == {dense.shape[-2]}.",
        )
    try:
        batch = np.broadcast_shapes(bsr.shape[:-2], dense.shape[:-2])
    except ValueError:
        raise ValueError(f"{name}(): inputs' batch dimensions are not broadcastable!") from None
    shape = (*batch, bsr.shape[-2], dense.shape[-1])
    if out is not None and not skip_checks:
        _expect(
            out.shape == shape,
            f"{name}(): `out` argument has wrong shape, expected {shape}, but got {out.shape}.",
        )
        _expect(out.dtype == dense.dtype and out.device == dense.device, f"{name}(): `out` is unlike dense")
    return shape


def _expect(fits: bool, message: str) -> None:
    if not fits:
        raise ValueError(message)


def _queue(before: Tensor, bsr: BsrTensor, dense: Tensor, out: Tensor, beta: complex, alpha: complex) -> Tensor:
    stream = stream_of(dense.storage.opened)
    wide, product, shape = _wide(dense.dtype), _product(), bsr.shape

    def work(ins: Arrays, outs: Arrays) -> None:
        added, factor, *parts = ins
        total = (
            np.zeros(outs[0].shape, wide) if beta == 0 else np.broadcast_to(added, outs[0].shape).astype(wide) * beta
        )
        batch = total.shape[:-2]
        if alpha != 0:
            crow, col, values = (np.broadcast_to(part, batch + part.shape[len(shape) - 2 :]) for part in parts)
            factor = np.broadcast_to(factor, batch + factor.shape[-2:])
            for at in np.ndindex(batch):
                _check_indices(crow[at], col[at], shape[-1] // values.shape[-1])
                matrix = crow[at], col[at], values[at].astype(wide)
                found = product(*matrix, factor[at].astype(wide), shape[-2:])
                total[at] += found if alpha == 1 else found * alpha
        with np.errstate(over="ignore"):  # of what does not fit, infinity is the answer
            np.copyto(outs[0], total, casting="unsafe")

    ins = [before, dense, *bsr.parts()]
    together([stream] * len(ins), ins, [out], work, of=[0], name="bsr_dense_addmm")
    return out


def _check_indices(crow: NDArray[Any], col: NDArray[Any], columns: int) -> None:
    falling = bool((np.diff(crow) < 0).any())
    _expect(crow[0] == 0 and crow[-1] == col.size and not falling, "crow_indices rise from 0 to the number of blocks")
    _expect(not col.size or (col.min() >= 0 and col.max() < columns), f"col_indices are below {columns}")


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What is computed in."""
    return dtype if dtype.kind in "iu" or dtype.itemsize > 2 else np.dtype(np.float32)


_Product = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, ...]], NDArray[Any]]


@cache
def _product() -> _Product:
    try:
        from scipy.sparse import bsr_matrix  # on the host: a queue's thread has nothing to import
    except ImportError:
        return product_by_numpy

    def product(
        crow: NDArray[Any], col: NDArray[Any], values: NDArray[Any], dense: NDArray[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        found: NDArray[Any] = bsr_matrix((values, col, crow), shape=shape) @ dense
        return found

    return product


def product_by_numpy(
    crow: NDArray[Any], col: NDArray[Any], values: NDArray[Any], dense: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """One row of blocks at a time: the blocks side by side, times what they meet."""
    (high, wide), width = values.shape[1:], dense.shape[-1]
    found = np.zeros((shape[0], width), values.dtype)
    met = dense.reshape(shape[1] // wide, wide, width)
    for row in range(shape[0] // high):
        here = slice(crow[row], crow[row + 1])
        across = (here.stop - here.start) * wide
        blocks = values[here].transpose(1, 0, 2).reshape(high, across)
        found[row * high : (row + 1) * high] = blocks @ met[col[here]].reshape(across, width)
    return found
