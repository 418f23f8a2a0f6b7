"""Build the script of the report page from report-page/, and compare it with the one in the package.

The package contains the built script, so that an installation needs no npm. Where npm or a recent Node.js is missing,
this only says so. `--write` replaces the script of the package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from steps import ROOT, call, fail

FOLDER = ROOT / "report-page"
SCRIPT = ROOT / "src/forebay/snapshot/report/page/explorer.js"
NODE = (20, 19)  # Vite needs this version or a later one


def main(arguments: list[str]) -> int:
    if unknown := {*arguments} - {"--write"}:
        fail(f"unknown argument {min(unknown)!r}")
    if missing := missing_tool():
        print(f"{SCRIPT.name} is not rebuilt: {missing}")
        return 0
    with tempfile.TemporaryDirectory() as target:
        built = build(target)
        if built == SCRIPT.read_bytes():
            return 0
        if "--write" not in arguments:
            fail(f"{SCRIPT.relative_to(ROOT)} is not what report-page/ builds: run tools/report_page.py --write")
        SCRIPT.write_bytes(built)
    return 0


def missing_tool() -> str:
    """Return why the script cannot be built here; "" if it can."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm was not found"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return "" if numbers >= NODE else f"Node.js is {version}, and Vite needs {'.'.join(map(str, NODE))}"


def build(target: str) -> bytes:
    """Install the tools of the lock file, check the types, and return the built script."""
    for step in (["ci", "--no-audit", "--no-fund"], ["run", "check"], ["run", "build"]):
        call(f"npm {' '.join(step[:2])}", ["npm", *step], FOLDER, OUT=target)
    return Path(target, SCRIPT.name).read_bytes()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
