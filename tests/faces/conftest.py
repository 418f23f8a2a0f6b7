"""The tests here share `on_oracle` (its docstring tells how to write a scene), which importlib mode would not find."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
