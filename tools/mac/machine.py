"""The Mac that a run uses, and whether it is the stand-in of tests/softmetal."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from forebay.backends.metal.discovery import system
from forebay.backends.metal.driver import MetalDriver

__all__ = ["Machine", "find_machine"]


@dataclass(frozen=True)
class Machine:
    """Names and versions for the results of a run."""

    gpu: str
    cores: int  # of the GPU; 0 if unknown
    family: str
    memory: int  # bytes
    recommended: int  # bytes
    system: str
    processor: str
    python: str
    pyobjc: str
    software: bool  # the stand-in, which has no hardware


def find_machine() -> Machine:
    """Describe the machine. There must be an MPS device."""
    props = MetalDriver().describe(0)
    software = "softmetal" in sys.modules
    try:
        pyobjc = metadata.version("pyobjc-framework-Metal")
    except metadata.PackageNotFoundError:
        pyobjc = "none"
    return Machine(
        props.name,
        int(props.details["core_count"]),
        str(props.details["family"]),
        props.total_bytes,
        int(props.details["recommended_max_memory"]),
        " ".join(filter(None, system())),
        platform.machine(),
        platform.python_version(),
        pyobjc,
        software,
    )
