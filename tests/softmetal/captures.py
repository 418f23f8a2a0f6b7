"""Captures of GPU work into documents for Xcode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import constants as k
from .control import control
from .foundation import NSError
from .objects import Descriptor, NSObject, autoreleased, instance, no_error, properties

DOMAIN = "MTLCaptureError"


@properties(captureObject=None, destination=k.MTLCaptureDestinationDeveloperTools, outputURL=None)
class MTLCaptureDescriptor(Descriptor):
    """The objects that a capture records, and its destination."""

    __slots__ = ()


class MTLCaptureManager(NSObject):
    """The one object that starts and stops captures; MTL_CAPTURE_ENABLED=1 allows documents."""

    __slots__ = ("_enabled", "_path")
    _shared: MTLCaptureManager | None = None

    def __init__(self) -> None:
        super().__init__()
        self._path: Path | None = None
        self._enabled = False

    @classmethod
    def sharedCaptureManager(cls) -> MTLCaptureManager:
        if cls._shared is None:
            cls._shared = cls()
        return cls._shared

    def isCapturing(self) -> bool:
        return self._path is not None

    def supportsDestination_(self, destination: int) -> bool:
        return destination == k.MTLCaptureDestinationGPUTraceDocument and control.capture_enabled

    def startCaptureWithDescriptor_error_(self, descriptor: Any, error: None) -> tuple[bool, NSError | None]:
        no_error(error)
        values = instance(descriptor, MTLCaptureDescriptor, "descriptor")._values
        if self._path is not None:
            return False, self._error(k.MTLCaptureErrorAlreadyCapturing, "Already capturing.")
        to_document = values.get("destination") == k.MTLCaptureDestinationGPUTraceDocument
        if not (to_document and control.capture_enabled):
            return False, self._error(k.MTLCaptureErrorNotSupported, "Capturing is not supported.")
        url = values.get("outputURL")
        if values.get("captureObject") is None or url is None:
            return False, self._error(k.MTLCaptureErrorInvalidDescriptor, "Descriptor is invalid.")
        path = Path(url.path())
        if path.suffix != ".gputrace" or path.exists() or not path.parent.is_dir():
            return False, self._error(k.MTLCaptureErrorInvalidDescriptor, f"Output URL is invalid: {path}")
        self._path = path
        return True, None

    def stopCapture(self) -> None:
        if self._path is not None:
            self._path.mkdir()
            (self._path / "metadata").write_text("software Metal\n")
            self._path = None

    def _error(self, code: int, text: str) -> NSError:
        found = autoreleased(NSError(DOMAIN, code, text), "startCaptureWithDescriptor_error_")
        assert isinstance(found, NSError)
        return found
