"""Programs whose processes are recorded, as `forebay fit` does, without an import of PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from textwrap import dedent

from forebay.interop.torch import on_import
from forebay.interop.torch.processes import program_use, read_records, recorder
from forebay.interop.torch.processes.reading import ending_by_status, with_main

__all__ = ["Programs", "sections"]

LIMIT = 60  # seconds of a program, which takes less than one

USE = """
    import atexit, multiprocessing, os, signal, subprocess, sys, threading
    from concurrent.futures import ProcessPoolExecutor
    from forebay.interop.torch.processes import recorder, unread_values
    GIB = 1 << 30

    def use(gib=1):
        recorder.start()
        recorder.used(0, 24 * GIB, gib * GIB, gib * GIB)

    def refuse(gib=30):
        recorder.start()
        recorder.refused(0, 24 * GIB, gib * GIB)

    def python(source, **more):
        return [sys.executable, "-c", "from use import *\\n" + source]
"""


def sections(text):
    """Return programs by name: each begins with a line "= NAME"."""
    parts = re.split(r"^= (.*)\n", dedent(text), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


class Programs:
    """Runs programs with records, as `forebay fit` does."""

    def __init__(self, folder):
        self.folder, self.records = folder, folder / "records"
        self.records.mkdir()
        (folder / "use.py").write_text(dedent(USE))

    def run(self, source, *, alarm=None):
        (self.folder / "program.py").write_text(f"from use import *\n{dedent(source)}")
        environment = os.environ | {recorder.FOLDER: str(self.records)}
        paths = [str(self.folder), *filter(None, sys.path)]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        on_import.set_environment("shapes", environment)
        done = subprocess.Popen(
            [sys.executable, "program.py"], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.output, _ = done.communicate(timeout=LIMIT)
        self.status = done.returncode
        return program_use(with_main(read_records(self.records), done.pid, ending_by_status(done.returncode)))
