"""The summary of `forebay run` and the schema of the documentation."""

from __future__ import annotations

import copy
import json

import jsonschema
import pytest
from support.json_schemas import check


def test_summary_has_the_schema_of_the_documentation(runner):
    observed = runner.forebay(
        """
        import os, subprocess, sys
        import numpy as np
        kept = np.ones(1 << 20)
        if not os.fork():
            np.ones(1 << 20)
            os._exit(0)
        os.wait()
        subprocess.run(["true"])
        subprocess.run([sys.executable, "-c", "import numpy, os; os.kill(os.getpid(), 9)"])
        """,
        options=("--json", "--memory=1GiB"),
    )
    summary = json.loads(observed.err)
    assert summary == json.loads((observed.output / "summary.json").read_text())
    check("summary", summary)
    assert [len(summary["processes"][name]) for name in ("not_recorded", "unfinished")] == [1, 1]
    for damage in (
        lambda found: found.pop("devices"),
        lambda found: found["devices"][0].update(peak=-1),
        lambda found: found["children"][0]["other_arrays"].pop("peak_bytes"),
        lambda found: found.update(verdict="fits"),
    ):
        damaged = copy.deepcopy(summary)
        damage(damaged)
        with pytest.raises(jsonschema.ValidationError):
            check("summary", damaged)
    with pytest.raises(jsonschema.ValidationError, match="undescribed"):
        check("summary", {**summary, "undescribed": 1})
