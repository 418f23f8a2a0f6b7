"""PyTorch's switches of gradient recording: stored per thread. Without gradients, they have no other effect."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]


class _Modes(threading.local):
    grad = True
    inference = False


_modes = _Modes()


def is_grad_enabled() -> bool:
    """Return True unless the thread is inside `no_grad` or `inference_mode`, or has disabled gradients."""
    return _modes.grad


def is_inference_mode_enabled() -> bool:
    """Return True inside `inference_mode`."""
    return _modes.inference


class _Switch:
    """A context manager and decorator that sets both modes and restores them."""

    def __init__(self, grad: bool | None = None, inference: bool | None = None) -> None:
        self._wanted = grad, inference
        self._before = _modes.grad, _modes.inference

    def _set(self) -> None:
        grad, inference = self._wanted
        _modes.grad = _modes.grad if grad is None else grad
        _modes.inference = _modes.inference if inference is None else inference

    def __enter__(self) -> Self:
        self._before = _modes.grad, _modes.inference
        self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _modes.grad, _modes.inference = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        generator = inspect.isgeneratorfunction(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if generator:
                return self._run(function(*args, **kwargs))
            with _Switch(*self._wanted):  # the function may call itself
                return function(*args, **kwargs)

        return wrapper

    def _run(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run a generator with the modes set while it runs, and those of the caller while it is suspended."""
        resume: Callable[[], Any] = functools.partial(next, generator)
        while True:
            try:
                with _Switch(*self._wanted):
                    item = resume()
            except StopIteration as end:
                return end.value
            try:
                sent = yield item
            except GeneratorExit:
                with _Switch(*self._wanted):
                    generator.close()
                raise
            except BaseException as error:  # noqa: BLE001 -- the generator decides
                resume = functools.partial(generator.throw, error)
            else:
                resume = functools.partial(generator.send, sent)


class _SetAtOnce(_Switch):
    """A switch that also sets the modes when it is created, for use as a function."""

    def __init__(self, grad: bool) -> None:
        super().__init__(grad=grad)
        self._set()

    def __enter__(self) -> Self:
        self._set()  # `__exit__` restores the modes before the creation
        return self

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _modes.grad, _modes.inference = self._before  # a decorator sets them when the function runs
        return _Switch(*self._wanted)(function)


def no_grad(orig_func: Callable[..., Any] | None = None) -> Any:
    """Return a context manager and decorator inside which gradients are disabled.

    As `torch.no_grad`. Tensors never have gradients, so only `is_grad_enabled` shows the mode.

    Parameters
    ----------
    orig_func : callable, optional
        The function to decorate, for `@no_grad` without parentheses.

    Returns
    -------
    context manager or callable
        The context manager, or the decorated function.

    Examples
    --------
    >>> import forebay
    >>> with forebay.no_grad():
    ...     forebay.is_grad_enabled()
    False
    """
    return _decorated(_Switch(grad=False), orig_func)


def enable_grad(orig_func: Callable[..., Any] | None = None) -> Any:
    """Return a context manager and decorator inside which gradients are enabled.

    As `torch.enable_grad`. Tensors never have gradients, so only `is_grad_enabled` shows the mode.

    Parameters
    ----------
    orig_func : callable, optional
        The function to decorate, for `@enable_grad` without parentheses.

    Returns
    -------
    context manager or callable
        The context manager, or the decorated function.
    """
    return _decorated(_Switch(grad=True), orig_func)


def inference_mode(mode: bool | Callable[..., Any] = True) -> Any:
    """Return a context manager and decorator for inference, which disables gradients.

    As `torch.inference_mode`. Tensors never have gradients, so only the queries of the modes show it.

    Parameters
    ----------
    mode : bool or callable, optional
        False to end the mode inside; or the function to decorate, for `@inference_mode` without parentheses.

    Returns
    -------
    context manager or callable
        The context manager, or the decorated function.
    """
    on = mode if isinstance(mode, bool) else True
    return _decorated(_Switch(grad=not on, inference=on), None if isinstance(mode, bool) else mode)


def set_grad_enabled(mode: bool) -> Any:
    """Enable or disable gradients.

    As `torch.set_grad_enabled`. Tensors never have gradients, so only `is_grad_enabled` shows the mode.

    Parameters
    ----------
    mode : bool
        True to enable them.

    Returns
    -------
    context manager
        At its end, the mode before this call is restored.

    Raises
    ------
    TypeError
        If `mode` is not a bool.
    """
    if not isinstance(mode, bool):
        raise TypeError(f"set_grad_enabled(): argument 'enabled' (position 1) must be bool, not {type(mode).__name__}")
    return _SetAtOnce(grad=mode)


def _decorated(switch: _Switch, function: Callable[..., Any] | None) -> Any:
    return switch if function is None else switch(function)
