"""Compare the names and signatures of an installed PyTorch with forebay's: dev.py names [--python PYTHON].

PYTHON is an interpreter that has PyTorch, of any version; by default that of .venv/torch. Printed are the names that
forebay lacks, and those whose kind or signature differs, unless tests/data/torch_names_differences.toml gives the
reason. The names of PyTorch 2.15 are in tests/data/torch_names.json; what is new since then is marked with "+".
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "names")]

test_names: Any = importlib.import_module("test_names")  # it has the comparison, and its folder is no package


def names_of(python: str) -> dict[str, Any]:
    """Return the names of the PyTorch of an interpreter, in the form of torch_names.json."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "names.json"
        done = subprocess.run(
            [python, str(ROOT / "tests/data/make_torch_names.py"), str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{python} cannot list PyTorch's names:\n{done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def report(found: dict[str, Any]) -> list[str]:
    """Return a line for each name that differs from forebay's without a listed reason."""
    known, lines = test_names.TORCH, []
    test_names.TORCH = found["modules"]
    for module in found["modules"]:
        if module in test_names.DIFFERENCES["modules"]:
            continue
        listed = test_names.listed_differences(module)
        for name, here in test_names.all_differences(module).items():
            if listed.get(name) == here:
                continue
            entry = found["modules"][module]["names"].get(name, {})
            before = known.get(module, {}).get("names", {}).get(name)
            mark = "+" if before is None else " " if before == entry else "~"
            lines.append(f"{mark} {module}.{name}{entry.get('signature') or ''}: here {here}")
    test_names.TORCH = known
    return lines


def main(arguments: list[str]) -> int:
    """Print the differences. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="dev.py names", description=__doc__.partition(":")[0])
    parser.add_argument("--python", default=str(ROOT / ".venv/torch/bin/python"), help="an interpreter with PyTorch")
    found = names_of(parser.parse_args(arguments).python)
    lines = report(found)
    print(*lines, sep="\n")
    count = sum(len(module["names"]) for module in found["modules"].values())
    print(f"PyTorch {found['torch']}: {count} names in {len(found['modules'])} modules, {len(lines)} differ")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
