"""The callback for the Trainer of Lightning, as the package `lightning` or as `pytorch_lightning`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.interop.torch.training.memory_watch import MemoryWatch

if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:
    _wanted = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    try:
        Callback = import_module(_wanted).Callback
    except ImportError:
        try:
            from lightning.pytorch import Callback
        except ImportError:  # only the documentation and checks of the sources import this module without either
            Callback = object

__all__ = ["LightningMemory"]


class LightningMemory(Callback):  # type: ignore[misc]  # its type is unknown where the library is not installed
    """A callback that watches the memory of `Trainer.fit`.

    If both packages are installed, import the one that is used before this class.

    Parameters
    ----------
    **options : object
        As for `MemoryWatch`.

    Examples
    --------
    >>> from forebay.interop.torch.training import LightningMemory  # doctest: +SKIP
    >>> Trainer(callbacks=[LightningMemory(cards=["t4", "l4"])]).fit(model)  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.watch: MemoryWatch = MemoryWatch(**options)  #: the watch

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self.watch.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any, **more: Any) -> None:
        """End a step."""
        self.watch.step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Add the explanation to an exception after which memory had run out."""
        self.watch.stop(exception)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Answer for other cards."""
        self.watch.stop()
