"""CUDA error codes, which emulated devices use too, and the errors that PyTorch raises for them."""

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

# Codes that forebay raises or tests for; `text_of` returns their texts.
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
DEINITIALIZED = 4
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_READY = 600
ILLEGAL_ADDRESS = 700
PEER_ACCESS_ENABLED = 704
CONTEXT_IS_DESTROYED = 709
REGISTERED_ALREADY = 712
NOT_REGISTERED = 713
CAPTURE_FORBIDS = 900
CAPTURE_BROKEN = 901
CAPTURE_MERGE = 902
CAPTURE_UNMATCHED = 903
CAPTURE_UNJOINED = 904
CAPTURE_ISOLATED = 905
CAPTURED_EVENT = 907
CAPTURE_OF_ANOTHER_THREAD = 908

_UNKNOWN = "unrecognized error code"  # CUDA's own text for an unknown code
_HINTS = {INVALID_DEVICE: "GPU device may be out of range, do you have enough GPUs?"}
_MANUAL = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"


@cache
def codes() -> Mapping[int, tuple[str, str]]:
    """Return the name and the text of each code.

    >>> codes()[2]
    ('cudaErrorMemoryAllocation', 'out of memory')
    """
    from importlib import resources  # late: needed only after a failure

    lines = (resources.files(__package__) / "cuda_errors.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {int(code): (name, text) for code, name, text in rows}


def text_of(code: int) -> str:
    """Return CUDA's text for a code (`cudaGetErrorString`)."""
    return codes().get(code, ("", _UNKNOWN))[1]


def accelerator_error(
    code: int, *, kind: str = "cuda", call: str = "", device: str = "", note: str = ""
) -> DeviceError:
    """Return the error that PyTorch raises for a CUDA error code.

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

    Returns
    -------
    DeviceError
        The error, with PyTorch's message.

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
