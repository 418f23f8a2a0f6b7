"""Plugin of pytest: ends the process after an error that is fatal for the GPU's context, so that another one goes on.

See Note [Tests that end their process]. The test is reported as that of a crashed worker.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["pytest_exception_interact"]


def pytest_exception_interact(call: Any) -> None:
    """End the process if a test failed by such an error, which is printed."""
    from forebay.backends.nvidia.calls import FATAL
    from forebay.errors import DeviceError

    error = call.excinfo.value
    while error is not None:
        if isinstance(error, DeviceError) and error.code in FATAL:
            print(f"fatal for the context: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        error = error.__cause__ or error.__context__
