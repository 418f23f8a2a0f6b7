"""The callback for `transformers.Trainer`."""

from __future__ import annotations

from typing import Any

from forebay.interop.torch.training.memory_watch import MemoryWatch

try:
    from transformers import TrainerCallback
except ImportError:  # only the documentation and checks of the sources import this module without it
    TrainerCallback = object

__all__ = ["TransformersMemory"]


class TransformersMemory(TrainerCallback):  # type: ignore[misc]  # its type is unknown where the library is not installed
    """A callback that watches the memory of `Trainer.train`.

    An exception that ends the training is not told to callbacks: the snapshot and the explanation are written when
    memory runs out, and the next training, or `watch.cancel`, ends the watch.

    Parameters
    ----------
    **options : object
        As for `MemoryWatch`.

    Examples
    --------
    >>> from forebay.interop.torch.training import TransformersMemory  # doctest: +SKIP
    >>> Trainer(model, arguments, callbacks=[TransformersMemory(cards=["t4", "l4"])]).train()  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        self.watch: MemoryWatch = MemoryWatch(**options)  #: the watch

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin to watch."""
        self.watch.cancel()  # of a training that failed
        self.watch.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End a step."""
        self.watch.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Answer for other cards."""
        self.watch.stop()
