"""The MTIA device kind."""

from __future__ import annotations

from forebay.names.kind import DeviceErrorMessages, DeviceKind

__all__ = ["MTIA", "DeferredMtiaCallError"]


class DeferredMtiaCallError(Exception):
    """Error of a call that was queued before the first use of MTIA.

    As `torch.mtia.DeferredMtiaCallError`.
    """


MTIA = DeviceKind(
    "mtia",
    deferred_error=DeferredMtiaCallError,
    no_backend="Torch not compiled with MTIA enabled",
    has_hooks=True,
    messages=DeviceErrorMessages(
        cpu="Expected a non cpu device, but got: {device}",
        other="Expected a {kind} or cpu device, but got: {device}",
        missing_index="Expected a torch.device with a specified index or an integer, but got: {device}",
    ),
)
