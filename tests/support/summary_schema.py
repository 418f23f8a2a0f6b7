"""The schema of the summaries of `forebay run`, which the documentation has, as a check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = json.loads(Path(__file__).parents[2].joinpath("docs/reference/summary.schema.json").read_text())
_OPEN = {"files", "choices", "versions", "outside", "workspaces", "in_use", "assumption_check"}  # described elsewhere


def check(summary: dict[str, Any]) -> None:
    """Raise an error unless the summary has the schema, and the schema each of its keys."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(summary)
    assert [*_unknown(summary, SCHEMA)] == []


def _unknown(value: Any, schema: dict[str, Any]):
    """Yield the keys that the schema does not describe."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        for each in value:
            yield from _unknown(each, schema.get("items", {}))
    properties = schema.get("properties")
    if isinstance(value, dict) and properties is not None:
        for name, each in value.items():
            if name not in properties:
                yield name
            elif name not in _OPEN:
                yield from _unknown(each, properties[name])
