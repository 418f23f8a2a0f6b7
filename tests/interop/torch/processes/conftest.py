"""Programs whose processes are recorded."""

from __future__ import annotations

import pytest
from support.recorded_programs import Programs


@pytest.fixture
def programs(tmp_path):
    return Programs(tmp_path)
