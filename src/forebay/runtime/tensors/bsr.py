"""Block sparse row (BSR) matrices and their products with dense matrices, computed in the device's queue.

SciPy computes the products if it is installed (the extra `sparse`), else NumPy. 16-bit floats accumulate as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.device_spec import Device
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.creation import tensor
from forebay.runtime.tensors.queued_numpy import Arrays, run_on_arrays
from forebay.runtime.tensors.tensor import Tensor, new_tensor

__all__ = ["BsrTensor", "bsr_dense_addmm", "bsr_dense_mm", "product_by_numpy"]


@dataclass(frozen=True, eq=False)
class BsrTensor:
    """A block sparse row (BSR) matrix, or a batch of them.

    Block row `i` consists of the blocks `crow_indices[i]` to `crow_indices[i + 1] - 1`. Batch dimensions come first in
    all four parts.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match. The indices themselves are not read: see `check`.

    Examples
    --------
    >>> import numpy as np, forebay
    >>> blocks = np.array([[[1.0, 2.0], [3.0, 4.0]]], "f4")
    >>> bsr = BsrTensor(*map(forebay.tensor, ([0, 1, 1], [1], blocks)), shape=(4, 4))
    >>> bsr.numpy()[0].tolist()
    [0.0, 0.0, 1.0, 2.0]
    """

    # The number of the first block of each block row, and at the end the number of blocks; int32 or int64.
    crow_indices: Tensor
    col_indices: Tensor  # the block column of each block, of the same dtype
    values: Tensor  # the blocks, each of two dimensions
    shape: tuple[int, ...]  # of the dense matrix

    def __post_init__(self) -> None:
        crow, col, values = self.crow_indices, self.col_indices, self.values
        object.__setattr__(self, "shape", tuple(self.shape))
        _expect(len({crow.device, col.device, values.device}) == 1, "all parts of a BSR tensor must be on one device")
        _expect(
            crow.numpy_dtype == col.numpy_dtype and crow.numpy_dtype.name in ("int32", "int64"),
            "indices must be int32 or int64",
        )
        _expect(len(self.shape) >= 2 and min(self.shape) >= 0, f"{self.shape} is not a valid matrix shape")
        batch = self.shape[:-2]
        _expect(
            crow.ndim == col.ndim == len(batch) + 1 and values.ndim == len(batch) + 3,
            f"for shape {self.shape}, indices must have {len(batch) + 1} dimensions and values {len(batch) + 3}",
        )
        heads = crow.shape[:-1], col.shape[:-1], values.shape[:-3]
        _expect(all(head == batch for head in heads), f"batch dimensions do not match: {batch} and {heads}")
        _expect(0 not in self.blocksize, f"block size {self.blocksize} is empty")
        divisible = all(length % part == 0 for length, part in zip(self.shape[-2:], self.blocksize, strict=True))
        _expect(divisible, f"matrix shape {self.shape[-2:]} is not divisible by block size {self.blocksize}")
        rows = self.shape[-2] // self.blocksize[0]
        _expect(crow.shape[-1] == rows + 1, f"{rows} block rows need {rows + 1} crow_indices, not {crow.shape[-1]}")
        _expect(col.shape[-1] == values.shape[-3], "col_indices must have one element per block")

    @property
    def device(self) -> Device:
        """The device of all parts."""
        return self.values.device

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.numpy_dtype

    @property
    def blocksize(self) -> tuple[int, int]:
        """The number of rows and columns of a block."""
        return self.values.shape[-2], self.values.shape[-1]

    @property
    def nnz(self) -> int:
        """The number of blocks of each matrix."""
        return self.col_indices.shape[-1]

    def parts(self) -> list[Tensor]:
        """Return `crow_indices`, `col_indices` and `values`."""
        return [self.crow_indices, self.col_indices, self.values]

    def check(self) -> None:
        """Check that all indices are valid.

        Waits for queued work on the parts.

        Raises
        ------
        ValueError
            If an index is invalid.
        """
        parts = [part.cpu().numpy() for part in self.parts()]
        for batch in np.ndindex(self.shape[:-2]):
            _check_indices(parts[0][batch], parts[1][batch], self.shape[-1] // self.blocksize[1])

    def numpy(self) -> NDArray[Any]:
        """Return the dense matrix, zeros included, as a NumPy array.

        Waits for queued work on the parts.

        Raises
        ------
        ValueError
            If an index is invalid.
        """
        self.check()
        crow, col, values = (part.cpu().numpy() for part in self.parts())
        dense = np.zeros(self.shape, self.dtype)
        height, width = self.blocksize
        for batch in np.ndindex(self.shape[:-2]):
            for row in range(self.shape[-2] // height):
                for n in range(crow[batch][row], crow[batch][row + 1]):
                    left = col[batch][n] * width
                    dense[batch][row * height : (row + 1) * height, left : left + width] += values[batch][n]
        return dense

    @classmethod
    def from_scipy(cls, matrix: Any, device: Device | str | None = None) -> BsrTensor:
        """Return a copy of a SciPy sparse matrix.

        Parameters
        ----------
        matrix : scipy.sparse matrix
            The matrix; the block size of a BSR matrix is kept.
        device : device or str, optional
            The device; the current one by default.
        """
        matrix = matrix.tobsr()
        crow, col, values = (
            tensor(np.ascontiguousarray(part), device=device) for part in (matrix.indptr, matrix.indices, matrix.data)
        )
        return cls(crow, col, values, matrix.shape)

    def to_scipy(self) -> Any:
        """Return a copy in host memory as a `scipy.sparse.bsr_matrix`; float32 for 16-bit floats.

        Waits for queued work on the parts.

        Raises
        ------
        ValueError
            If there are batch dimensions, or an index is invalid.
        """
        from scipy.sparse import bsr_matrix

        _expect(len(self.shape) == 2, "SciPy does not support batches of matrices")
        self.check()
        crow, col, values = (part.cpu().numpy() for part in self.parts())
        return bsr_matrix((values.astype(_accumulator_dtype(self.dtype)), col, crow), shape=self.shape)


def bsr_dense_mm(bsr: BsrTensor, dense: Tensor, *, out: Tensor | None = None, skip_checks: bool = False) -> Tensor:
    """Return the product of a BSR matrix and a dense matrix, with batch dimensions broadcast.

    As `torch.sparse._triton_ops.bsr_dense_mm`. Does not block the host. Invalid indices fail in the queue: the next
    synchronization raises DeviceError.

    Parameters
    ----------
    bsr : BsrTensor
        The sparse matrix.
    dense : Tensor
        The dense matrix, of the same dtype and device.
    out : Tensor, optional
        Where to write the result; a new tensor by default.
    skip_checks : bool, optional
        Skip most checks of shapes, dtypes and devices. False by default.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match.
    """
    shape = _output_shape("bsr_dense_mm", bsr, dense, out, skip_checks=skip_checks)
    out = new_tensor(shape, dense.numpy_dtype, dense.device) if out is None else out
    return _queue_product(out, bsr, dense, out, 0, 1)


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
    """Return `beta * input + alpha * (bsr @ dense)`, with batch dimensions broadcast.

    As `torch.sparse._triton_ops.bsr_dense_addmm`. Does not block the host. Invalid indices fail in the queue: the next
    synchronization raises DeviceError.

    Parameters
    ----------
    input : Tensor
        The summand, broadcast to the shape of the product; of the same dtype and device as `dense`.
    bsr : BsrTensor
        The sparse matrix.
    dense : Tensor
        The dense matrix, of the same dtype and device.
    beta : complex, optional
        The factor of `input`; with 0, `input` is ignored even if it is NaN. 1 by default.
    alpha : complex, optional
        The factor of the product; with 0, the product is ignored even if it is NaN. 1 by default.
    out : Tensor, optional
        Where to write the result; a new tensor by default.
    skip_checks : bool, optional
        Skip most checks of shapes, dtypes and devices. False by default.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not match.
    """
    shape = _output_shape("bsr_dense_addmm", bsr, dense, out, skip_checks=skip_checks)
    if not skip_checks:
        _expect(
            input.numpy_dtype == dense.numpy_dtype and input.device == dense.device,
            "bsr_dense_addmm(): input and dense differ in dtype or device",
        )
        lengths = zip(input.shape[::-1], shape[::-1], strict=False)
        fits = input.ndim <= len(shape) and all(length in (1, target) for length, target in lengths)
        _expect(fits, f"bsr_dense_addmm(): input of shape {input.shape} does not broadcast to {shape}")
    out = new_tensor(shape, dense.numpy_dtype, dense.device) if out is None else out
    return _queue_product(input, bsr, dense, out, beta, alpha)


def _output_shape(
    name: str, bsr: BsrTensor, dense: Tensor, out: Tensor | None, *, skip_checks: bool
) -> tuple[int, ...]:
    """Check the arguments, with PyTorch's error texts, and return the shape of the result."""
    if not skip_checks:
        _expect(isinstance(bsr, BsrTensor), f"{name}(): only BSR sparse format is supported for the sparse argument.")
        _expect(bsr.device == dense.device, f"{name}(): all inputs are expected to be on the same GPU device.")
        _expect(
            bsr.dtype == dense.numpy_dtype and dense.numpy_dtype.kind not in "bc",
            f"{name}(): all inputs are expected to be of the same dtype, and not complex or bool, "
            f"but got dtype == {bsr.dtype} and {dense.numpy_dtype}.",
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
        _expect(
            out.numpy_dtype == dense.numpy_dtype and out.device == dense.device,
            f"{name}(): `out` and dense differ in dtype or device",
        )
    return shape


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _queue_product(input_: Tensor, bsr: BsrTensor, dense: Tensor, out: Tensor, beta: complex, alpha: complex) -> Tensor:
    stream = current_stream_for(dense.raw_storage.opened)
    accumulator, product, shape = _accumulator_dtype(dense.numpy_dtype), _product(), bsr.shape

    def work(ins: Arrays, outs: Arrays) -> None:
        summand, factor, *parts = ins
        total = (
            np.zeros(outs[0].shape, accumulator)
            if beta == 0
            else np.broadcast_to(summand, outs[0].shape).astype(accumulator) * beta
        )
        batch = total.shape[:-2]
        if alpha != 0:
            crow, col, values = (np.broadcast_to(part, batch + part.shape[len(shape) - 2 :]) for part in parts)
            factor = np.broadcast_to(factor, batch + factor.shape[-2:])
            for at in np.ndindex(batch):
                _check_indices(crow[at], col[at], shape[-1] // values.shape[-1])
                matrix = crow[at], col[at], values[at].astype(accumulator)
                result = product(*matrix, factor[at].astype(accumulator), shape[-2:])
                total[at] += result if alpha == 1 else result * alpha
        with np.errstate(over="ignore"):  # overflow of a 16-bit float gives infinity
            np.copyto(outs[0], total, casting="unsafe")

    ins = [input_, dense, *bsr.parts()]
    run_on_arrays([stream] * len(ins), ins, [out], work, output_ranks=[0], name="bsr_dense_addmm")
    return out


def _check_indices(crow: NDArray[Any], col: NDArray[Any], columns: int) -> None:
    decreasing = bool((np.diff(crow) < 0).any())
    _expect(
        crow[0] == 0 and crow[-1] == col.size and not decreasing,
        "crow_indices must increase from 0 to the number of blocks",
    )
    _expect(not col.size or (col.min() >= 0 and col.max() < columns), f"col_indices must be in [0, {columns})")


def _accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which products of this dtype are computed."""
    return dtype if dtype.kind in "iu" or dtype.itemsize > 2 else np.dtype(np.float32)


_Product = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, ...]], NDArray[Any]]


@cache
def _product() -> _Product:
    try:
        from scipy.sparse import bsr_matrix  # imported here, not in the queue's thread
    except ImportError:
        return product_by_numpy

    def product(
        crow: NDArray[Any], col: NDArray[Any], values: NDArray[Any], dense: NDArray[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        result: NDArray[Any] = bsr_matrix((values, col, crow), shape=shape) @ dense
        return result

    return product


def product_by_numpy(
    crow: NDArray[Any], col: NDArray[Any], values: NDArray[Any], dense: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the product, one block row at a time: its blocks side by side, times the matching rows of `dense`."""
    (block_rows, block_columns), columns = values.shape[1:], dense.shape[-1]
    result = np.zeros((shape[0], columns), values.dtype)
    dense_blocks = dense.reshape(shape[1] // block_columns, block_columns, columns)
    for row in range(shape[0] // block_rows):
        span = slice(crow[row], crow[row + 1])
        inner = (span.stop - span.start) * block_columns
        blocks = values[span].transpose(1, 0, 2).reshape(block_rows, inner)
        result[row * block_rows : (row + 1) * block_rows] = blocks @ dense_blocks[col[span]].reshape(inner, columns)
    return result
