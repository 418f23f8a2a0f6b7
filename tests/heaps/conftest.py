"""The scenarios are modules of their own, whose assertions pytest shows as those of a test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode would not find them
pytest.register_assert_rewrite("scenarios_of_placing", "scenarios_of_reuse", "scenarios_of_need", "scenarios_of_limits")
