"""JSON schemas of many shapes, and whether values fit them."""

from __future__ import annotations

import re
from typing import Any

from tests.gateway.wire import Body

PERSON: Body = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def fits(value: object, schema: Any) -> bool:
    """Whether a value is valid, for the keywords that the schemas below use."""
    if schema is True or schema == {}:
        return True
    if "$ref" in schema:
        return fits(value, NODE)
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if "const" in schema:
        return bool(value == schema["const"]) and type(value) is type(schema["const"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    types = schema.get("type", [])
    checks = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    kinds = [types] if isinstance(types, str) else types
    if kinds and not any(isinstance(value, checks[kind]) for kind in kinds):
        return False
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        is_closed = schema.get("additionalProperties") is False
        return (
            set(schema.get("required", ())) <= value.keys()
            and (not is_closed or value.keys() <= properties.keys())
            and all(fits(item, properties[key]) for key, item in value.items() if key in properties)
            and [key for key in properties if key in value] == [key for key in value if key in properties]
        )
    if isinstance(value, list):
        in_bounds = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1000)
        return in_bounds and all(fits(item, schema.get("items", True)) for item in value)
    if isinstance(value, str):
        in_bounds = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10_000)
        return in_bounds and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, int):
        in_range = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        return bool(in_range and value % schema.get("multipleOf", 1) == 0)
    return True


NODE: Body = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["v", "kids"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, Any] = {
    "an object": PERSON,
    "optional properties": {"type": "object", "properties": {"b": {"type": "boolean"}, "a": {"type": "null"}}},
    "a nested object": {"type": "object", "properties": {"who": PERSON}, "required": ["who"]},
    "an array": {"type": "array", "items": {"enum": [1, None, "x"]}, "minItems": 2, "maxItems": 3},
    "a string": {"type": "string", "minLength": 3, "maxLength": 6},
    "a pattern": {"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"},
    "a number in a range": {"type": "integer", "minimum": -20, "maximum": -7},
    "a multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500},
    "a list of types (G-78)": {"type": ["boolean", "null"]},
    "constants of all types (G-78)": {"enum": [None, 3, "a", {"x": [1]}]},
    "a constant": {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]},
    "one of several": {"anyOf": [PERSON, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]},
    "a recursive one (G-35)": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
}
