"""Automatic mixed precision, always disabled: forebay has no operators and no gradients (`torch.cuda.amp`).

A program that passes `enabled=False` runs as with PyTorch; without it, Unsupported is raised.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike

from forebay._base.dtypes import as_dtype, float16
from forebay.errors import Unsupported
from forebay.names.unsupported import unsupported, unsupported_error

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]


def amp_definitely_not_available() -> bool:
    """Return True: no device supports automatic mixed precision.

    As `torch.cuda.amp.common.amp_definitely_not_available`. Does not initialise CUDA.

    Examples
    --------
    >>> from forebay.cuda import amp
    >>> amp.amp_definitely_not_available()
    True
    """
    return True


def _not_supported(name: str) -> Unsupported:
    return unsupported_error(f"{__name__}.{name}")


class autocast(ContextDecorator):  # noqa: N801 -- PyTorch's name
    """A context manager and decorator without effect, for programs that disable autocasting.

    As `torch.cuda.amp.autocast`.

    Parameters
    ----------
    enabled : bool, default True
        Must be False.
    dtype : dtype, default float16
        Stored as `fast_dtype`.
    cache_enabled : bool, default True
        Stored without effect.

    Raises
    ------
    Unsupported
        Unless `enabled` is False.

    Examples
    --------
    >>> from forebay.cuda import amp
    >>> with amp.autocast(enabled=False):
    ...     pass
    """

    cache_enabled: bool
    fast_dtype: np.dtype[Any]

    def __init__(self, enabled: bool = True, dtype: DTypeLike = float16, cache_enabled: bool = True) -> None:
        if enabled:
            raise _not_supported("autocast")
        self.fast_dtype, self.cache_enabled = as_dtype(dtype), cache_enabled

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return None


class GradScaler:
    """A gradient scaler that does not scale, for programs that disable scaling.

    As `torch.cuda.amp.GradScaler`.

    Parameters
    ----------
    init_scale : float, default 65536.0
        Stored without effect.
    growth_factor : float, default 2.0
        Stored without effect.
    backoff_factor : float, default 0.5
        Stored without effect.
    growth_interval : int, default 2000
        Stored without effect.
    enabled : bool, default True
        Must be False.

    Raises
    ------
    Unsupported
        Unless `enabled` is False.

    Examples
    --------
    >>> from forebay.cuda import amp
    >>> amp.GradScaler(enabled=False).get_scale()
    1.0
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled:
            raise _not_supported("GradScaler")
        self._init_scale, self._growth_interval = init_scale, growth_interval
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor

    def is_enabled(self) -> bool:
        """Return False: scaling is always disabled."""
        return False

    def scale(self, outputs: Any) -> Any:
        """Return the outputs unchanged.

        Parameters
        ----------
        outputs : object
            Tensors, or containers of tensors.
        """
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the gradients are not scaled.

        Parameters
        ----------
        optimizer : object
            Ignored.
        """

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `optimizer.step` and return its result.

        Parameters
        ----------
        optimizer : object
            An object with a method `step`.
        *args : object
            Passed to `step`.
        **kwargs : object
            Passed to `step`.
        """
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Do nothing: there is no scale to update.

        Parameters
        ----------
        new_scale : float, optional
            Ignored.
        """

    def get_scale(self) -> float:
        """Return the scale: always 1."""
        return 1.0

    def get_growth_factor(self) -> float:
        """Return the stored growth factor."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Store a growth factor.

        Parameters
        ----------
        new_factor : float
            The growth factor; it has no effect.
        """
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Return the stored backoff factor."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Store a backoff factor.

        Parameters
        ----------
        new_factor : float
            The backoff factor; it has no effect.
        """
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Return the stored growth interval, a number of steps."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Store a growth interval.

        Parameters
        ----------
        new_interval : int
            The number of steps; it has no effect.
        """
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Return the state: empty, as PyTorch's when scaling is disabled."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: the state is not used.

        Parameters
        ----------
        state_dict : dict
            Ignored.
        """


custom_fwd: Final = unsupported(__name__, "custom_fwd(fwd=None, *, cast_inputs=None)")
custom_bwd: Final = unsupported(__name__, "custom_bwd(bwd)")
