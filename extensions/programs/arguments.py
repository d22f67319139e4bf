"""Arguments of a program against the JSON Schema in its header."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, cast

import jsonschema_rs
import msgspec

from extensions.errors import ArgumentsInvalid

MAX_SCHEMA_BYTES = 64 * 2**10
"""Largest schema of a program's arguments."""

_MAX_DEPTH = 32


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Any: ...


def schema_error(schema: object) -> str | None:
    """What is wrong with a schema of arguments, or None. Nothing that it names is fetched."""
    if not isinstance(schema, dict):
        return "it must be a dict"
    if schema.get("type", "object") != "object":
        return "its type must be 'object'"
    try:
        text = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it is no JSON: {error}"
    if len(text) > MAX_SCHEMA_BYTES:
        return f"it has {len(text)} bytes, at most {MAX_SCHEMA_BYTES} are allowed"
    try:
        _validator(text)
    except (ValueError, RecursionError) as error:
        return str(getattr(error, "message", error))
    return None


def checked_arguments(schema: Mapping[str, Any] | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with the schema's defaults filled in; without a schema, as they are.

    Raises:
        ArgumentsInvalid: They do not fit; `param` is the path of the first that does not.
    """
    filled = copy.deepcopy(dict(args))
    if schema is None:
        return filled
    _fill(filled, schema, 0)
    validator = _validator(msgspec.json.encode(schema))
    for error in validator.iter_errors(filled):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        raise ArgumentsInvalid(f"args{path}: {error.message}", f"args{path}")
    return filled


def _fill(value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> None:
    """Puts `default` where a property is missing, in objects inside objects too."""
    properties = schema.get("properties")
    if depth >= _MAX_DEPTH or not isinstance(properties, Mapping):
        return
    for name, of_property in properties.items():
        if not isinstance(of_property, Mapping):
            continue
        if name not in value and "default" in of_property:
            value[name] = copy.deepcopy(of_property["default"])
        if isinstance(value.get(name), dict):
            _fill(value[name], of_property, depth + 1)


@lru_cache(maxsize=512)
def _validator(schema: bytes) -> _Validator:
    """Compiles a schema.

    Raises:
        ValueError: It is no schema, or refers to anything outside itself.
    """
    decoded = msgspec.json.decode(schema)
    return cast(
        "_Validator",
        jsonschema_rs.Draft202012Validator(
            decoded,
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=2**20, dfa_size_limit=2**20),
        ),
    )
