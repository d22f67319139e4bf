"""What all wire models share: null means omitted, wrong types are refused with the field's path, extra fields pass.

Every integer of a request is bounded by one of the types here: nothing larger than 64 bits gets past validation.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic_core
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.errors import BadRequest, UnsupportedParameter
from gateway.schemas.faults import MISSING_ONE, fault_of

log = logging.getLogger(__name__)

INT64_MAX = 2**63 - 1
Int64 = Annotated[int, Field(ge=-(2**63), le=INT64_MAX)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
PositiveCount = Annotated[int, Field(ge=1, le=INT64_MAX)]

MAX_TOKEN_ID = 2**31 - 1
"""No vocabulary is larger; whether the model's own has an id is looked up later."""

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
"""JSON can spell numbers beyond a double (`1e999`); those are refused too."""


def _as_strings(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("list_type", "it must be a string or a list of strings")
    return value


StringList = Annotated[list[str], BeforeValidator(_as_strings, json_schema_input_type=str | list[str])]
"""One string or a list of them."""

MAX_FIELDS = 1024
"""Most keys of one object that has fields of its own."""

MAX_SEARCHED_BYTES = 2**20
"""In longer bodies the field that is no valid JSON is not searched for."""

MAX_JSON_DEPTH = 200
"""Levels that the parser takes; what it was given beyond those is looked at for the name of the field alone."""

_JSON_MARK = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')

MAX_REPORTED_EXTRAS = 256
_reported_extras: set[str] = set()


class WireModel(BaseModel):
    """Base of every request body.

    `unsupported` names fields whose meaning this server cannot honour, each with the values that ask for nothing;
    any other value is refused with `UnsupportedParameter` rather than ignored.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "it has more than {most} fields", {"most": MAX_FIELDS})
        for name, harmless in cls.unsupported.items():
            value = data.get(name)
            if value is not None and value not in harmless:
                raise UnsupportedParameter(name)
        # Null is nothing to say of a field; of one that is none it is as wrong as any value, where that is refused.
        unknown = data.keys() - cls.model_fields.keys() if cls.model_config.get("extra") == "forbid" else ()
        return {
            key: value
            for key, value in data.items()
            if (value is not None or key in unknown) and key not in cls.unsupported
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tells in the API's description what the validators above do."""
        described = handler(schema)
        body = handler.resolve_ref_schema(described)
        for name, field in body.get("properties", {}).items():
            field.pop("title", None)
            if name not in body.get("required", ()) and _NULL not in field.get("anyOf", ()):
                body["properties"][name] = {"anyOf": [field, _NULL]}
        if cls.unsupported:
            names = ", ".join(sorted(cls.unsupported))
            body["description"] += f"\n\nRefused unless they ask for nothing: {names}."
        return described


class StrictModel(WireModel):
    """Base of bodies in which a name that means nothing is an error: those that are ours alone, and those of
    administrators. A limit that is misspelt would be no limit."""

    model_config = ConfigDict(extra="forbid")


_NULL = {"type": "null"}
M = TypeVar("M", bound=WireModel)


def parse_json(body: bytes) -> dict[str, Any]:
    """Decodes a request body: strict JSON, at most 200 levels deep, no NaN or Infinity, no lone surrogates.

    A byte order mark before it is ignored, as RFC 8259 allows.

    Raises:
        BadRequest: It is no JSON object; for NaN, Infinity and lone surrogates `param` is the path of the first,
            unless the body is very long.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise _json_error(body, str(error)) from None
    if not isinstance(data, dict):
        raise BadRequest("The request body must be a JSON object.", code="invalid_json")
    return data


def validate(model: type[M], data: dict[str, Any]) -> M:
    """Checks a decoded body against `model`.

    Raises:
        BadRequest: A field is missing, of the wrong type or out of range; `param` is its path.
        UnsupportedParameter: A field asks for what this server cannot do.
    """
    try:
        parsed = model.model_validate(data)
    except ValidationError as error:
        raise _field_error(error, data) from None
    _report_extras(model, data)
    return parsed


def _report_extras(model: type[WireModel], data: dict[str, Any]) -> None:
    """Logs each unknown field once in the life of the process."""
    for name in data.keys() - model.model_fields.keys() - model.unsupported.keys() - _reported_extras:
        if len(_reported_extras) < MAX_REPORTED_EXTRAS:
            _reported_extras.add(name)
            log.info("ignoring unknown request field %.80r", name)


def _field_error(error: ValidationError, data: object) -> BadRequest:
    kind, path, reason = fault_of(error, data)
    if kind == "missing":
        return BadRequest(f"Missing required parameter: '{path}'.", path)
    if kind == MISSING_ONE:
        return BadRequest(f"Missing required parameter: {reason}{_of_object(path)}.", path)
    if kind == "extra_forbidden":
        return BadRequest(f"Unknown parameter: '{path[:200]}'.", path[:200], "unknown_parameter")
    if not path:
        return BadRequest(f"The request body is not valid: {reason}.")
    code = "invalid_type" if kind.endswith(("_type", "_parsing")) else None
    return BadRequest(f"Invalid '{path}': {reason}.", path, code)


def _of_object(path: str) -> str:
    """Says where a member is, if not in the body itself."""
    parent = path.rpartition(".")[0]
    return f" of '{parent}'" if parent else ""


class _NoNumber:
    """Stands for a NaN or Infinity in leniently parsed JSON."""

    def __init__(self, literal: str) -> None:
        self.literal = literal


def _json_error(body: bytes, reason: str) -> BadRequest:
    # The strict parser stops at NaN or a lone surrogate without saying in which field; a lenient second pass finds it.
    fault = None if len(body) > MAX_SEARCHED_BYTES else _find_fault(body, reason)
    if fault is None or not fault[0]:
        reason = reason if _is_utf8(body) else "it must be encoded as UTF-8"
        return BadRequest(f"The request body is not valid JSON: {reason}.", code="invalid_json")
    path, complaint = fault
    return BadRequest(f"Invalid '{path}': {complaint}.", path)


def _is_utf8(body: bytes) -> bool:
    # In UTF-16 and UTF-32 the first character of JSON, which is ASCII, has a zero byte.
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return 0 not in body[:4]


def _find_fault(body: bytes, reason: str) -> tuple[str, str] | None:
    if reason.startswith("recursion limit"):
        return _depth_fault(body)
    try:
        return next(_faults(json.loads(body, parse_constant=_NoNumber)), None)
    except (ValueError, RecursionError):
        return None


def _faults(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and complaint of whatever only a lenient parser takes, in the order of the text."""
    if isinstance(value, _NoNumber):
        yield path, f"{value.literal} is no JSON number"
    elif isinstance(value, str):
        if not _is_text(value):
            yield path, "it holds an unpaired surrogate, which is not valid text"
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _faults(item, f"{path}[{position}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            shown = key.encode("utf-8", "backslashreplace").decode()
            at = f"{path}.{shown}" if path else shown
            if not _is_text(key):
                yield at, "its name holds an unpaired surrogate, which is not valid text"
            yield from _faults(item, at)


def _depth_fault(body: bytes) -> tuple[str, str] | None:
    """The field of the body's object that is nested too deep for any parser."""
    depth, name, text = 0, b"", b""
    for match in _JSON_MARK.finditer(body):
        mark = match[0]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
        elif mark != b":":
            text = mark
        elif depth == 1:
            name = text
        if depth > MAX_JSON_DEPTH:
            break
    try:
        return json.loads(name), f"it is nested deeper than {MAX_JSON_DEPTH} levels"
    except ValueError:
        return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
