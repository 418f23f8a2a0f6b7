"""The hook of accelerate, for a loop of one's own: a step begins with the forward pass of a model."""

from __future__ import annotations

from typing import Any

from forebay.interop.torch.training.memory_watch import MemoryWatch

try:
    from accelerate.hooks import ModelHook
except ImportError:  # only the documentation and checks of the sources import this module without it
    ModelHook = object

__all__ = ["AccelerateMemory"]


class AccelerateMemory(ModelHook):  # type: ignore[misc]  # its type is unknown where the library is not installed
    """A hook that watches the memory from when it is added to a model until it is removed.

    Parameters
    ----------
    **options : object
        As for `MemoryWatch`.

    Examples
    --------
    >>> from accelerate.hooks import add_hook_to_module, remove_hook_from_module  # doctest: +SKIP
    >>> add_hook_to_module(model, AccelerateMemory(cards=["t4", "l4"]), append=True)  # doctest: +SKIP
    >>> remove_hook_from_module(model)  # after the loop: answers for other cards  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        self.watch: MemoryWatch = MemoryWatch(**options)  #: the watch
        self._begun = False

    def init_hook(self, module: Any) -> Any:
        """Begin to watch."""
        self.watch.start()
        return module

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """End the step before, with its backward pass and optimizer."""
        if self._begun and module.training:
            self.watch.step()
        self._begun = self._begun or module.training
        return args, kwargs

    def detach_hook(self, module: Any) -> Any:
        """Answer for other cards."""
        self.watch.stop()
        return module
