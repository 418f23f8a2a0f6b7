"""CUDA's error codes, and the errors that PyTorch raises for them.

Backends of other devices use them where a rule of CUDA applies, as in captures. The constants are those that forebay
raises or tests for; `text_of` returns the text of any code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from forebay.errors import DeviceError

__all__ = [
    "CAPTURED_EVENT",
    "CAPTURE_BROKEN",
    "CAPTURE_FORBIDS",
    "CAPTURE_ISOLATED",
    "CAPTURE_MERGE",
    "CAPTURE_OF_ANOTHER_THREAD",
    "CAPTURE_UNJOINED",
    "CAPTURE_UNMATCHED",
    "CONTEXT_IS_DESTROYED",
    "DEINITIALIZED",
    "ILLEGAL_ADDRESS",
    "ILLEGAL_STATE",
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
    "INVALID_HANDLE",
    "INVALID_VALUE",
    "NOT_INITIALIZED",
    "NOT_READY",
    "NOT_REGISTERED",
    "NO_DEVICE",
    "OUT_OF_MEMORY",
    "PEER_ACCESS_ENABLED",
    "REGISTERED_ALREADY",
    "accelerator_error",
    "codes",
    "text_of",
]

INVALID_VALUE = 1  #: invalid argument
OUT_OF_MEMORY = 2  #: out of memory
NOT_INITIALIZED = 3  #: initialization error
DEINITIALIZED = 4  #: driver shutting down
NO_DEVICE = 100  #: no CUDA-capable device is detected
INVALID_DEVICE = 101  #: invalid device ordinal
INVALID_CONTEXT = 201  #: invalid device context
INVALID_HANDLE = 400  #: invalid resource handle
ILLEGAL_STATE = 401  #: the operation cannot be performed in the present state
NOT_READY = 600  #: device not ready
ILLEGAL_ADDRESS = 700  #: an illegal memory access was encountered
PEER_ACCESS_ENABLED = 704  #: peer access is already enabled
CONTEXT_IS_DESTROYED = 709  #: context is destroyed
REGISTERED_ALREADY = 712  #: part or all of the requested memory range is already mapped
NOT_REGISTERED = 713  #: pointer does not correspond to a registered memory region
CAPTURE_FORBIDS = 900  #: operation not permitted when stream is capturing
CAPTURE_BROKEN = 901  #: operation failed due to a previous error during capture
CAPTURE_MERGE = 902  #: operation would result in a merge of separate capture sequences
CAPTURE_UNMATCHED = 903  #: capture was not ended in the same stream as it began
CAPTURE_UNJOINED = 904  #: capturing stream has unjoined work
CAPTURE_ISOLATED = 905  #: dependency created on uncaptured work in another stream
CAPTURED_EVENT = 907  #: operation not permitted on an event last recorded in a capturing stream
CAPTURE_OF_ANOTHER_THREAD = 908  #: attempt to terminate a thread-local capture sequence from another thread

_UNKNOWN = "unrecognized error code"  # CUDA's own text for an unknown code
_HINTS = {INVALID_DEVICE: "GPU device may be out of range, do you have enough GPUs?"}
_MANUAL = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


@cache
def codes() -> Mapping[int, tuple[str, str]]:
    """Return the name and the text of each code.

    Examples
    --------
    >>> codes()[2]
    ('cudaErrorMemoryAllocation', 'out of memory')
    """
    from importlib import resources  # late: needed only after a failure

    lines = (resources.files(__package__) / "cuda_errors.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {int(code): (name, text) for code, name, text in rows}


def text_of(code: int) -> str:
    """Return CUDA's text for a code (`cudaGetErrorString`).

    Parameters
    ----------
    code : int
        The code.
    """
    return codes().get(code, ("", _UNKNOWN))[1]


def accelerator_error(
    code: int, *, kind: str = "cuda", call: str = "", device: str = "", note: str = ""
) -> DeviceError:
    """Return the error that PyTorch raises for a CUDA error code, with PyTorch's message.

    Parameters
    ----------
    code : int
        CUDA's error code.
    kind : str, default "cuda"
        Device kind, which the message names instead of CUDA.
    call : str, default ""
        Name of the function that failed.
    device : str, default ""
        Name of the device.
    note : str, default ""
        More details, attached to the error as a note: the message remains PyTorch's.

    Examples
    --------
    >>> print(accelerator_error(400))
    CUDA error: invalid resource handle
    Search for `cudaErrorInvalidResourceHandle' in https://docs.nvidia.com/cuda/... for more information.
    <BLANKLINE>
    """
    name = codes().get(code, ("", ""))[0]
    hint = _HINTS.get(code, "")
    if name and not hint and kind == "cuda":
        hint = f"Search for `{name}' in {_MANUAL} for more information."
    lines = [f"{kind.upper()} error: {text_of(code)}", hint]
    error = DeviceError("".join(f"{line}\n" for line in lines if line), code=code, call=call, device=device)
    if note:
        error.add_note(note)
    return error
