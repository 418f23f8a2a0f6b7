"""Automatic mixed precision, switched off: there are no operators to cast and no gradients to scale. (torch.cuda.amp)

A program that says `enabled=False` runs as with PyTorch; without it, it is told why it cannot.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Self

from numpy.typing import DTypeLike

from forebay.dtypes import as_dtype, float16
from forebay.errors import Unsupported
from forebay.faces.unsupported import unsupported

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]

_REASON = "a runtime has no operators and no gradients. Pass enabled=False, or use the framework that computes."


def amp_definitely_not_available() -> bool:
    """True, on every device. (torch.cuda.amp.common.amp_definitely_not_available)"""
    return True


def _refuse(name: str) -> Unsupported:
    return Unsupported(f"{__name__}.{name} is not supported: {_REASON}")


class autocast(ContextDecorator):  # noqa: N801 -- PyTorch's name
    """With `enabled=False` a context manager and a decorator that do nothing; else Unsupported.

    (torch.cuda.amp.autocast)
    """

    def __init__(self, enabled: bool = True, dtype: DTypeLike = float16, cache_enabled: bool = True) -> None:
        if enabled:
            raise _refuse("autocast")
        self.fast_dtype, self.cache_enabled = as_dtype(dtype), cache_enabled

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return None


class GradScaler:
    """With `enabled=False` scales by nothing and steps the optimizer; else Unsupported. (torch.cuda.amp.GradScaler)"""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled:
            raise _refuse("GradScaler")
        self._init_scale, self._growth_interval = init_scale, growth_interval
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor

    def is_enabled(self) -> bool:
        """False."""
        return False

    def scale(self, outputs: Any) -> Any:
        """The outputs themselves."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing was scaled."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """What `optimizer.step(*args, **kwargs)` gives."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """There is no scale to update."""

    def get_scale(self) -> float:
        """1."""
        return 1.0

    def get_growth_factor(self) -> float:
        """The factor that was given."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Keep the factor."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor that was given."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Keep the factor."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of steps that was given."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Keep the number of steps."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """Empty, as PyTorch's when it is not enabled."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Any state will do: none of it is used."""


custom_fwd = unsupported(__name__, "custom_fwd(fwd=None, *, cast_inputs=None)", _REASON)
custom_bwd = unsupported(__name__, "custom_bwd(bwd)", _REASON)
