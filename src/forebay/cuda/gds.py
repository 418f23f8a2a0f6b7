"""GPUDirect Storage, which there is not: files go through host memory. (torch.cuda.gds)"""

from __future__ import annotations

from forebay.faces.unsupported import unsupported, unsupported_class

__all__ = ["GdsFile", "gds_deregister_buffer", "gds_register_buffer", "is_available"]

_REASON = "it needs NVIDIA's cuFile. Read into forebay.empty_pinned() and copy from there."


def is_available() -> bool:
    """False: files do not reach device memory without the host. (torch.cuda.gds.is_available)"""
    return False


gds_register_buffer = unsupported(__name__, "gds_register_buffer(s)", _REASON)
gds_deregister_buffer = unsupported(__name__, "gds_deregister_buffer(s)", _REASON)
GdsFile = unsupported_class(  # opens no file, and makes none
    __name__,
    "GdsFile",
    _REASON,
    "__init__(self, filename, flags)",
    "register_handle(self)",
    "deregister_handle(self)",
    "load_storage(self, storage, offset=0)",
    "save_storage(self, storage, offset=0)",
)
