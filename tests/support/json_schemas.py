"""The JSON schemas that the documentation has, as checks of what commands print."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs/reference"


def check(name: str, value: Any) -> None:
    """Raise jsonschema.ValidationError unless the value has a schema, and the schema each of its keys."""
    validator(name).validate(value)


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a schema, which refuses unknown keys: the documented one permits new ones."""
    schema = json.loads(FOLDER.joinpath(f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_closed(schema))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    names = {key: _closed(each) for key, each in schema.get("properties", {}).items()}
    made = {key: names if key == "properties" else _closed(each) for key, each in schema.items()}
    return {"additionalProperties": False, **made} if names else made
