"""The kind that this face is of."""

from __future__ import annotations

from forebay.faces.kind import Kind, Refusals

__all__ = ["MTIA", "DeferredMtiaCallError"]


class DeferredMtiaCallError(Exception):
    """A call that waited for the first use of MTIA failed then. (`torch.mtia.DeferredMtiaCallError`)"""


MTIA = Kind(
    "mtia",
    deferred_error=DeferredMtiaCallError,
    no_backend="Torch not compiled with MTIA enabled",
    hooks=True,
    refusals=Refusals(
        host="Expected a non cpu device, but got: {device}",
        other="Expected a {kind} or cpu device, but got: {device}",
        unnamed="Expected a torch.device with a specified index or an integer, but got: {device}",
    ),
)
