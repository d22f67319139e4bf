"""Wire fields that ask for a form of the text, to the constraint they come down to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engine.request import ConstraintKind, ConstraintSpec
from gateway.errors import BadRequest
from gateway.schemas.structured import ResponseFormat, StructuredFields, StructuredOutputs


def constraint_of(fields: StructuredFields) -> ConstraintSpec | None:
    """Returns what the text must be, or None where it is free.

    Raises:
        BadRequest: Two fields ask for something; `param` is the second.
    """
    found = list(_asked(fields))
    if len(found) > 1:
        first, second = (spec.param.split(".")[0] for spec in found[:2])
        raise BadRequest(f"'{second}' cannot be used together with '{first}'.", second)
    return found[0] if found else None


def _asked(fields: StructuredFields) -> Iterator[ConstraintSpec]:
    if fields.response_format is not None:
        yield from _of_response_format(fields.response_format)
    if fields.structured_outputs is not None:
        yield from _of_structured_outputs(fields.structured_outputs)
    for name, schema in (("guided_json", fields.guided_json), ("json_schema", fields.json_schema)):
        if schema is not None:
            yield _of_schema(schema, name, whitespace_pattern=fields.guided_whitespace_pattern)
    for name, regex in (("guided_regex", fields.guided_regex), ("regex", fields.regex)):
        if regex:
            yield ConstraintSpec(kind=ConstraintKind.REGEX, source=regex, param=name)
    if fields.guided_choice is not None:
        yield _of_choice(fields.guided_choice, "guided_choice")
    grammars = (("guided_grammar", fields.guided_grammar), ("ebnf", fields.ebnf), ("grammar", fields.grammar))
    for name, grammar in grammars:
        if grammar:
            yield ConstraintSpec(kind=ConstraintKind.LARK, source=grammar, param=name)


def _of_response_format(wanted: ResponseFormat) -> Iterator[ConstraintSpec]:
    param = "response_format"
    if wanted.type == "text":
        return
    if wanted.json_schema is not None and wanted.type == "json_schema":
        yield _of_schema(wanted.json_schema.schema_, f"{param}.json_schema.schema", strict=wanted.json_schema.strict)
    elif wanted.schema_ is not None:
        yield _of_schema(wanted.schema_, f"{param}.schema")
    else:
        yield ConstraintSpec(kind=ConstraintKind.JSON_OBJECT, param=param)


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[ConstraintSpec]:
    param = "structured_outputs"
    compact, pattern = wanted.disable_any_whitespace, wanted.whitespace_pattern
    if wanted.json_ is not None:
        yield _of_schema(wanted.json_, f"{param}.json", compact=compact, whitespace_pattern=pattern)
    if wanted.json_object:
        kind = ConstraintKind.JSON_OBJECT
        yield ConstraintSpec(kind=kind, compact=compact, whitespace_pattern=pattern, param=f"{param}.json_object")
    if wanted.regex is not None:
        yield ConstraintSpec(kind=ConstraintKind.REGEX, source=wanted.regex, param=f"{param}.regex")
    if wanted.choice is not None:
        yield _of_choice(wanted.choice, f"{param}.choice")
    if wanted.grammar is not None:
        yield ConstraintSpec(kind=ConstraintKind.LARK, source=wanted.grammar, param=f"{param}.grammar")


def _of_schema(
    schema: dict[str, Any] | bool | str,
    param: str,
    *,
    strict: bool = False,
    compact: bool = False,
    whitespace_pattern: str | None = None,
) -> ConstraintSpec:
    return ConstraintSpec(
        kind=ConstraintKind.JSON_SCHEMA,
        source=schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False),
        strict=strict,
        compact=compact,
        whitespace_pattern=whitespace_pattern,
        param=param,
    )


def _of_choice(choices: list[str], param: str) -> ConstraintSpec:
    return ConstraintSpec(kind=ConstraintKind.CHOICE, source=json.dumps(choices, ensure_ascii=False), param=param)
