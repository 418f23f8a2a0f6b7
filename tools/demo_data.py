"""Record the data of `forebay demo`, in the environment of PyTorch: .venv/torch/bin/python tools/demo_data.py

A training step of examples/train_gpt2.py on an emulated H100, which it fits, and on a T4, where memory runs out. Paths
of this machine become those of a user.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from forebay import snapshot
from forebay.snapshot.formats import native

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "src/forebay/commands/demo_data"
RECORDINGS = {"fits": "cuda:1@h100", "ran_out": "cuda:1@t4"}
KEPT = ("allocator_settings", "fine_segments", "external_annotations")  # notes that are not about this machine
PREFIXES = (
    (re.compile(r"^.*/site-packages/"), "/home/user/.venv/lib/python3/site-packages/"),
    (re.compile(r"^.*/src/forebay/"), "/home/user/.venv/lib/python3/site-packages/forebay/"),
    (re.compile(r"^.*/examples/"), "/home/user/examples/"),
    (re.compile(r"^/(?!home/user/).*/lib/python3[0-9.]*/"), "/usr/lib/python3/"),
)


def main() -> int:
    for name, device in RECORDINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            options = ["--emulate", device, "--shapes-only", "--output", folder]
            program = [str(ROOT / "examples/train_gpt2.py"), "--batch", "24"]
            command = [sys.executable, "-m", "forebay", "run", *options, *program]
            subprocess.run(command, check=False, capture_output=True)  # out of memory on one of them
            (found,) = snapshot.load(Path(folder, "snapshot.forebay"))
        notes = {"program": ["examples/train_gpt2.py", "--batch", "24"]}
        notes |= {each: found.notes[each] for each in KEPT if each in found.notes}
        neutral = replace(found, strings=tuple(map(_neutral, found.strings)), notes=notes)
        native.write(neutral, TARGET / f"train_gpt2_{name}.forebay")
    return 0


def _neutral(text: str) -> str:
    for pattern, prefix in PREFIXES:
        text = pattern.sub(prefix, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
