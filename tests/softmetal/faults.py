"""Errors that end a command buffer, with the texts of Metal's driver."""

from __future__ import annotations

TEXTS = {  # of Metal's driver
    1: "Internal Error (0000000e:Internal Error)",
    2: "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    3: "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
    4: "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
    7: "Insufficient Permission (to submit GPU work from background) "
    "(00000006:kIOGPUCommandBufferCallbackErrorBackgroundExecutionNotPermitted)",
    8: "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    9: "Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)",
    11: "Device Removed",
    12: "Stack Overflow",
}


class GPUFault(Exception):
    """Faults that end a command buffer with an error."""

    def __init__(self, code: int, text: str = "") -> None:
        self.code = code
        super().__init__(text or TEXTS.get(code, f"error {code}"))
