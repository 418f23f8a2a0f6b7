"""The lines of docs/one-line.md, and the files that they use: each is executed in a folder and a home of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from steps import ROOT, clean_variables

PAGE = ROOT / "docs/one-line.md"
SNAPSHOT = ROOT / "tests/data/snapshots/out_of_memory.pickle.gz"
SECONDS = 200
FILES = {
    "train.py": "import torch\nmodel = torch.nn.Linear(100, 100).cuda()\n"
    "model(torch.ones(8, 100, device='cuda')).sum().backward()\n",
    "loop.py": "import torch\nfrom forebay.interop.torch.training import MemoryWatch\n\nwith MemoryWatch() as memory:\n"
    "    x = torch.ones(100, device='cuda')\n    memory.step()\n",
    "analysis.py": "import numpy as np\n\nkept = [np.ones(1 << 20) for _ in range(8)]\n",
    "test_device.py": "import forebay\n\ndef test_device(emulated_cuda):\n"
    "    assert forebay.zeros(3, device='cuda').device.index == 0\n",
    "test_arrays.py": "import numpy as np\nimport pytest\n\n@pytest.mark.forebay_peak('64MiB')\n"
    "def test_arrays():\n    np.ones(1 << 20)\n",
    "test_conformance.py": 'from forebay.testing.conformance import *\n\npytest_plugins = ["forebay.testing.plugin"]\n',
}


class Line(NamedTuple):
    """A line of the page."""

    audience: str
    command: str
    with_torch: bool


def lines() -> list[Line]:
    """Return the lines of the page."""
    rows = re.findall(r"^\| (.*?) \| `(.*?)`( ¹)? \|", PAGE.read_text(), re.MULTILINE)
    return [Line(audience, command, bool(mark)) for audience, command, mark in rows]


def make_files(folder: Path) -> None:
    """Write the files that the lines use, in a repository with one commit."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    shutil.copyfile(SNAPSHOT, folder / "snapshot.pickle")
    (folder / "ranks").mkdir()
    for rank in range(2):
        shutil.copyfile(SNAPSHOT, folder / f"ranks/rank{rank}.pickle")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def execute(
    line: Line, python: str, folder: Path, home: Path, first: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Execute a line with an interpreter, in a folder with its files; `first` are folders of packages."""
    variables = {name: value for name, value in clean_variables().items() if not name.startswith(("XDG_", "FOREBAY_"))}
    variables |= {"HOME": str(home), "PATH": os.pathsep.join([str(Path(python).parent), os.defpath])}
    if first:
        variables["PYTHONPATH"] = os.pathsep.join(first)
    words = shlex.split(line.command)
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    program = {"forebay": ["-m", "forebay"], "python": [], "pytest": ["-m", "pytest", "-q"]}[words[0]]
    if words[0] == "pytest" and first:
        program += ["-p", "forebay_pytest"]  # sources have no entry point
    command = [python, *program, *words[1:]]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
