"""Run the fast tests with the lowest versions that pyproject.toml allows: python3 dev.py minimums [--newest]

The environment is .venv-minimums. It contains the lowest versions of the requirements to build, run and test forebay,
and a forebay that is compiled with them. `--newest` installs the newest versions instead, which need not be those of
.venv. Other arguments are pytest's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from steps import ROOT, call, clean_variables, output

TESTS = ["--quick", "--numprocesses=2", "--dist=worksteal", "--override-ini=testpaths=tests"]
NOT_COPIED = shutil.ignore_patterns(
    ".*", "build", "dist", "docs", "tests", "*.so", "*.egg-info", "_core.c*", "__pycache__"
)


def main(arguments: list[str]) -> int:
    newest = "--newest" in arguments
    environment = ROOT / (".venv-newest" if newest else ".venv-minimums")
    python = str(environment / "bin/python")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    resolution = "highest" if newest else "lowest-direct"
    call("environment", [sys.executable, "-m", "uv", "venv", "--quiet", "--clear", str(environment)])
    call("requirements", [*uv, "--resolution", resolution, *requirements()])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "forebay")  # so that the checkout's own modules are not replaced
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        call("forebay", [*uv, "--no-deps", "--no-build-isolation", str(copy)])
    print(output([sys.executable, "-m", "uv", "pip", "list", "--quiet", "--python", python]), flush=True)
    tests = [python, "-m", "pytest", *TESTS, *(argument for argument in arguments if argument != "--newest")]
    return subprocess.run(tests, cwd=ROOT, env=clean_variables(), check=False).returncode


def requirements() -> list[str]:
    """Return what pyproject.toml requires to build, run and test forebay."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = content["project"]["optional-dependencies"]
    return [
        *content["build-system"]["requires"],
        *content["project"]["dependencies"],
        *extras["test"],
        *extras["demo"],
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
