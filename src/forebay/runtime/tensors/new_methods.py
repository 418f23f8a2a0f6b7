"""Methods of tensors that create others of the same dtype on the same device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from forebay._base.device_spec import DeviceLike
from forebay._base.dtypes import DTypeLike
from forebay._base.layouts import layout, strided
from forebay.runtime.memory import transfer

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["NewTensors", "factories"]


class factories:  # noqa: N801 -- used as an object
    """The factories, which know tensors: set by forebay._wiring."""

    empty: Callable[..., Tensor]
    strided: Callable[..., Tensor]
    tensor: Callable[..., Tensor]


class NewTensors:
    """The methods of a tensor that create others. Internal to the runtime."""

    def new_empty(
        self,
        *size: Any,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        layout: layout = strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return an uninitialised tensor, by default of this dtype on this device.

        Parameters
        ----------
        *size : int or sequence of int
            The shape.
        dtype, device, layout, requires_grad, pin_memory : optional
            As for `forebay.empty`.
        """
        return self._new("new_empty", size, dtype, device, layout, requires_grad, pin_memory)

    def new_zeros(
        self,
        *size: Any,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        layout: layout = strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return a tensor of zeros, by default of this dtype on this device.

        Parameters
        ----------
        *size : int or sequence of int
            The shape.
        dtype, device, layout, requires_grad, pin_memory : optional
            As for `forebay.empty`.
        """
        return _filled(self._new("new_zeros", size, dtype, device, layout, requires_grad, pin_memory), 0)

    def new_ones(
        self,
        *size: Any,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        layout: layout = strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return a tensor of ones, by default of this dtype on this device.

        Parameters
        ----------
        *size : int or sequence of int
            The shape.
        dtype, device, layout, requires_grad, pin_memory : optional
            As for `forebay.empty`.
        """
        return _filled(self._new("new_ones", size, dtype, device, layout, requires_grad, pin_memory), 1)

    def new_full(
        self,
        size: Sequence[int],
        fill_value: complex,
        *,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        layout: layout = strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return a tensor of equal elements, by default of this dtype on this device.

        Parameters
        ----------
        size : sequence of int
            The shape.
        fill_value : bool or int or float or complex
            The value of each element.
        dtype, device, layout, requires_grad, pin_memory : optional
            As for `forebay.empty`.
        """
        return _filled(self._new("new_full", (size,), dtype, device, layout, requires_grad, pin_memory), fill_value)

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return a tensor with a copy of data, by default of this dtype on this device.

        Parameters
        ----------
        data : array_like or Tensor
            The elements.
        dtype, device, requires_grad, pin_memory : optional
            As for `forebay.tensor`.
        """
        options: Any = {"requires_grad": requires_grad, "pin_memory": pin_memory}
        kind, place = self._defaults(dtype, device)
        return factories.tensor(data, dtype=kind, device=place, **options)

    def new_empty_strided(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        layout: layout = strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Return an uninitialised tensor with given strides, by default of this dtype on this device.

        Parameters
        ----------
        size : sequence of int
            The shape.
        stride : sequence of int
            The distances of neighbours, in elements.
        dtype, device, layout, requires_grad, pin_memory : optional
            As for `forebay.empty`.
        """
        kind, place = self._defaults(dtype, device)
        return factories.strided("new_empty_strided", size, stride, kind, place, pin_memory, layout, requires_grad)

    def _defaults(self, dtype: DTypeLike | None, device: DeviceLike | None) -> tuple[DTypeLike, DeviceLike]:
        this = cast("Tensor", self)
        return this.numpy_dtype if dtype is None else dtype, this.device if device is None else device

    def _new(
        self,
        function: str,
        size: tuple[Any, ...],
        dtype: DTypeLike | None,
        device: DeviceLike | None,
        layout: layout,
        requires_grad: bool,
        pin_memory: bool,
    ) -> Tensor:
        kind, place = self._defaults(dtype, device)
        return factories.empty(function, size, None, None, kind, place, pin_memory, layout, requires_grad)


def _filled(made: Tensor, value: complex | np.generic) -> Tensor:
    transfer.fill(made, value)
    return made
