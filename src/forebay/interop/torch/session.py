"""PyTorch on emulated devices for the rest of a process, with a ledger of its memory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from forebay.errors import Unsupported, WrongState

if TYPE_CHECKING:
    from forebay.interop.torch.attribution.ledger import Ledger
    from forebay.interop.torch.attribution.results import PeakUse
    from forebay.interop.torch.devices.patching import Patch

__all__ = ["TorchSession", "running"]

_running: TorchSession | None = None


class TorchSession:
    """A patch of PyTorch and a ledger, from `start` to `stop`. The mode is that of `patch()`."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._patch: Patch | None = None
        self._ledger: Ledger | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Patch PyTorch, which is imported if it is not yet. Raises WrongState and Unsupported as `patch`."""
        global _running  # noqa: PLW0603 -- the only session of the process
        if _running is not None:
            raise WrongState("PyTorch uses emulated devices already")
        try:
            from forebay.interop.torch.attribution.ledger import Ledger
            from forebay.interop.torch.devices.patching import Patch
        except (ImportError, AttributeError) as error:  # a module or a name that this version does not have
            version = getattr(sys.modules.get("torch"), "__version__", "of an unknown version")
            raise Unsupported(f"PyTorch {version} cannot emulate CUDA devices: {error!r}") from None
        patch, ledger = Patch(self.mode), Ledger()  # type: ignore[arg-type]  # Patch checks the mode
        patch.start()
        self._patch, self._ledger = patch, ledger
        try:
            ledger.start()
        except BaseException:
            self.stop()
            raise
        _running = self

    def stop(self) -> None:
        """Restore PyTorch. Calling it again does nothing."""
        global _running  # noqa: PLW0603 -- as above
        try:
            if self._ledger is not None:
                self._ledger.stop()
        finally:
            if self._patch is not None:
                self._patch.stop()
            if _running is self:
                _running = None

    def restart_in_child(self) -> None:
        """Measure what a forked child does, if its parent has used no device; else it can use none, as in PyTorch."""
        if self._ledger is not None and not self._ledger.devices:
            self._process = os.getpid()

    def place_of(self, index: int) -> int:
        """Return the machine's index of a device, which differs where CUDA_VISIBLE_DEVICES selects devices."""
        devices = {} if self._ledger is None else self._ledger.devices
        return next((use.place for opened, use in devices.items() if opened.device.index == index), index)

    def shared_results(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the devices would have done on other cards, by the name of the card; call it after `results`."""
        from forebay.interop.torch.attribution.shared_results import shared_results

        return {} if self._ledger is None or self._process != os.getpid() else shared_results(self._ledger)

    def most_workspaces(self) -> dict[int, int]:
        """Return the bytes that cuDNN's workspaces add at most to what is reserved, by index of the device."""
        return {} if self._ledger is None or self._process != os.getpid() else self._ledger.most_workspaces()

    def results(self) -> list[PeakUse]:
        """Return what held the peak of each device; nothing in a forked child whose devices are its parent's."""
        return [] if self._ledger is None or self._process != os.getpid() else self._ledger.results()


def running() -> TorchSession | None:
    """Return the session that runs, if any."""
    return _running
