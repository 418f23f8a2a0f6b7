"""GPUDirect Storage, which is not supported: file I/O uses host memory (`torch.cuda.gds`)."""

from __future__ import annotations

from typing import Final

from forebay.names.unsupported import unsupported, unsupported_class

__all__ = ["GdsFile", "gds_deregister_buffer", "gds_register_buffer", "is_available"]


def is_available() -> bool:
    """Return False: files cannot be read directly into device memory.

    As `torch.cuda.gds.is_available`. Does not initialise CUDA.

    Examples
    --------
    >>> from forebay.cuda import gds
    >>> gds.is_available()
    False
    """
    return False


gds_register_buffer: Final = unsupported(__name__, "gds_register_buffer(s)")
gds_deregister_buffer: Final = unsupported(__name__, "gds_deregister_buffer(s)")
GdsFile: Final = unsupported_class(  # neither opens nor creates the file
    __name__,
    "GdsFile",
    "__init__(self, filename, flags)",
    "register_handle(self)",
    "deregister_handle(self)",
    "load_storage(self, storage, offset=0)",
    "save_storage(self, storage, offset=0)",
)
