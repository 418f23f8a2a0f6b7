"""The process of one run of a function. A script is a process without this module."""

from __future__ import annotations

import pickle
import sys
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.interop.torch.fit.tasks import FitTask

__all__ = ["main"]


def main() -> None:
    """Call the function of the task in the file of the first argument. Its exceptions end the process."""
    request = Path(sys.argv[1])
    task: FitTask = pickle.loads(request.read_bytes())  # noqa: S301 -- written by the process that started this one
    if task.path:
        spawn.prepare({"sys_path": [*task.path]} | ({"init_main_from_path": task.main} if task.main else {}))
    function, arguments = pickle.loads(task.payload)  # noqa: S301 -- as above
    function(**arguments)
