"""JSON schemas of Python types: dataclasses with their comments, and objects that are described by hand."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any

__all__ = ["Builder", "Object", "Optional", "Record", "Schema", "Several"]

Schema = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A dataclass or named tuple that is an object in JSON, with other fields than those of the class."""

    of: type
    drop: tuple[str, ...] = ()
    replace: Mapping[str, Any] = field(default_factory=dict)  # or add: a type, or a type and a text
    name: str = ""  # of the definition, if not that of the class


@dataclass(frozen=True)
class Object:
    """An object that no class describes: types, or types and texts, by key."""

    name: str
    keys: Mapping[str, Any]
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Several:
    """An array of such values."""

    of: Any


@dataclass(frozen=True)
class Optional:
    """A value or null."""

    of: Any


class Builder:
    """The definitions of one schema."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def schema(self, kind: Any) -> Schema:
        """Return the schema of a type, or of one of the descriptions above."""
        match kind:
            case Several():
                return {"type": "array", "items": self.schema(kind.of)}
            case Optional():
                return {"anyOf": [self.schema(kind.of), {"type": "null"}]}
            case Object():
                return self._defined(kind.name, "", dict(kind.keys), kind.optional)
            case Record():
                return self._record(kind)
            case dict():
                return kind
            case UnionType():
                return {"anyOf": [self.schema(each) for each in typing.get_args(kind)]}
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return {"enum": [*arguments]}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.schema(arguments[1])}
        if origin in (list, Sequence) or (origin is tuple and arguments[-1] is ...):
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin is tuple:
            return self._places([self.schema(each) for each in arguments])
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [each.value for each in kind]}
        if is_dataclass(kind):
            return self._record(Record(typing.cast("type", kind)))
        if isinstance(kind, type) and issubclass(kind, tuple):
            hints, texts = typing.get_type_hints(kind), _texts(kind)
            return self._places([self.schema(hint) | _described(texts.get(name)) for name, hint in hints.items()])
        raise TypeError(f"no schema for {kind!r}")

    @staticmethod
    def _places(items: list[Schema]) -> Schema:
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _record(self, kind: Record) -> Schema:
        names = [each.name for each in fields(kind.of)] if is_dataclass(kind.of) else [*kind.of.__annotations__]
        hints, texts = typing.get_type_hints(kind.of), _texts(kind.of)
        keys: dict[str, Any] = {
            name: (hints[name], texts[name]) if name in texts else hints[name]
            for name in names
            if name not in kind.drop
        }
        for name, other in kind.replace.items():
            keys[name] = other if isinstance(other, tuple) or name not in texts else (other, texts[name])
        return self._defined(kind.name or kind.of.__name__, inspect.getdoc(kind.of) or "", keys, ())

    def _defined(self, name: str, doc: str, keys: Mapping[str, Any], optional: tuple[str, ...]) -> Schema:
        if name not in self.definitions:
            self.definitions[name] = {}  # of a type that contains itself
            properties = {}
            for key, value in keys.items():
                kind, text = value if isinstance(value, tuple) else (value, None)
                properties[key] = self.schema(kind) | _described(text)
            made: Schema = {"type": "object", "properties": properties}
            made["required"] = [key for key in keys if key not in optional]
            self.definitions[name] = _described(doc.partition("\n")[0]) | made
        elif {*self.definitions[name].get("properties", keys)} != {*keys}:
            raise TypeError(f"two definitions of {name}")
        return {"$ref": f"#/$defs/{name}"}


_PLAIN: dict[Any, Schema] = {
    int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"}, bool: {"type": "boolean"},
    NoneType: {"type": "null"}, object: {}, Any: {},
}  # fmt: skip


def _described(text: str | None) -> Schema:
    return {"description": text} if text else {}


def _texts(kind: type) -> dict[str, str]:
    """Return the texts of the fields: the comment above or beside each, or those of the section Parameters."""
    found, above = {}, [""]
    for line in inspect.getsource(kind).splitlines():
        if comment := re.match(r"    #:? (.*)", line):
            above.append(comment[1])
        elif named := re.match(r"    (\w+)\s*:[^#]*(?:#:? (.*))?$", line):
            if text := " ".join([*above, named[2] or ""]).strip():
                found[named[1]] = text
            above = [""]
        else:
            above = [""]
    section = re.search(r"Parameters\n-+\n((?:.*\n?)*?)(?:\n\w.*\n-+\n|\Z)", inspect.getdoc(kind) or "")
    for names, text in re.findall(r"^([\w, ]+) : .*\n((?: .*\n?)+)", section[1] if section else "", re.MULTILINE):
        for name in names.split(", "):
            found.setdefault(name, " ".join(text.split()))
    return {name: text.replace("`", "") for name, text in found.items()}
