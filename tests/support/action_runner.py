"""A runner of composite GitHub Actions, as far as action.yml needs one: expressions, `if`, environments and outputs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import yaml

__all__ = ["Ran", "run_action"]

_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


class Ran(NamedTuple):
    status: int  # of the step that failed, or 0
    outputs: dict[str, str]
    printed: str
    summary: str


def run_action(action: Path, workspace: Path, event: dict[str, Any], **inputs: str) -> Ran:
    """Run a composite action in a workspace with inputs by name, as the runner of GitHub does."""
    text = yaml.safe_load(action.read_text())
    unknown = {*inputs} - {*text["inputs"]}
    assert not unknown, unknown
    context: dict[str, Any] = {"github": {"event": event}, "inputs": {}, "steps": {}}
    for name, about in text["inputs"].items():
        value = inputs.get(name, about.get("default"))
        assert value is not None or not about.get("required"), f"the input {name} is required"
        context["inputs"][name] = _evaluate(str(value), context)
    temporary = workspace.parent / "runner-temp"
    temporary.mkdir(exist_ok=True)
    printed, status = "", 0
    summary = temporary / "summary"
    summary.touch()
    for number, step in enumerate(text["runs"]["steps"]):
        if not _is_true(step.get("if", ""), context):
            continue
        outputs = temporary / f"outputs-{number}"
        outputs.touch()
        script = temporary / f"step-{number}.sh"
        script.write_text(_evaluate(step["run"], context))
        variables = {
            **os.environ,
            **{name: _evaluate(str(value), context) for name, value in step.get("env", {}).items()},
            "GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(temporary),
        }  # fmt: skip
        assert step["shell"] == "bash"
        folder = workspace / _evaluate(step.get("working-directory", "."), context)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False
        )
        printed += done.stdout + done.stderr
        found = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        context["steps"][step.get("id", str(number))] = {"outputs": found}
        if done.returncode:
            status = done.returncode
            break
    outputs_of = {name: _evaluate(about["value"], context) for name, about in text["outputs"].items()}
    return Ran(status, outputs_of, printed, summary.read_text())


def _evaluate(text: str, context: dict[str, Any]) -> str:
    return _EXPRESSION.sub(lambda found: _look_up(found[1], context), text)


def _look_up(path: str, context: dict[str, Any]) -> str:
    value: Any = context
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value)


def _is_true(condition: str, context: dict[str, Any]) -> bool:
    if not condition:
        return True
    found = re.fullmatch(r"([\w.-]+) != ''", condition)
    assert found, f"the condition {condition!r} is not known to this runner"
    return bool(_look_up(found[1], context))
