"""Start of a Python process with FOREBAY_EMULATE: PyTorch, once it is imported, uses the emulated CUDA devices.

# Note [Emulation by the environment]
`FOREBAY_EMULATE=cuda python train.py` runs a program that does not import forebay. Python executes the line of
forebay_startup.pth when it starts, in every process, also in those that a program starts: it imports this module if the
variable is set, which takes 10 ms, and costs nothing otherwise. Processes of `forebay run` and `forebay fit` begin by
their own sitecustomize. Rejected: a sitecustomize of forebay's in site-packages, as there is only one.
Test: tests/test_forebay_startup.py::test_pytorch_uses_the_devices_of_the_environment_also_in_child_processes

It imports the standard library only, and nothing of forebay before PyTorch.
"""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

__all__: list[str] = []

_OWN = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- pathlib is slow to import
_STARTUP = os.path.join(_OWN, "forebay", "interop", "torch", "startup")  # noqa: PTH118 -- as above


def _begin() -> None:
    kinds = [each.strip().partition(":")[0].partition("@")[0] for each in os.environ["FOREBAY_EMULATE"].split(",")]
    if "cuda" not in kinds or _STARTUP in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return
    path = os.path.join(_STARTUP, "sitecustomize.py")  # noqa: PTH118 -- as above
    spec = spec_from_file_location("_forebay_startup", path)
    module: Any = module_from_spec(spec)  # type: ignore[arg-type]  # the file exists
    spec.loader.exec_module(module)  # type: ignore[union-attr]  # as above
    module.install_hooks()


_begin()
