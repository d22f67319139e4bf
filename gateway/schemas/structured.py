"""What the text of an answer must be: OpenAI's `response_format`, vLLM's `structured_outputs` and older names."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import WireModel
from gateway.schemas.faults import exactly_one


def _check_schema(value: object) -> object:
    if not isinstance(value, dict | bool):
        raise PydanticCustomError("schema_type", "it must be a JSON Schema, which is an object")
    return value


def _check_schema_or_text(value: object) -> object:
    return value if isinstance(value, str) else _check_schema(value)


Schema = Annotated[Any, BeforeValidator(_check_schema, json_schema_input_type=dict[str, Any] | bool)]
"""A JSON Schema."""

SchemaOrText = Annotated[
    Any, BeforeValidator(_check_schema_or_text, json_schema_input_type=dict[str, Any] | bool | str)
]
"""A JSON Schema, or the JSON text of one."""

Choices = Annotated[list[str], Field(min_length=1)]


class JsonSchemaFormat(WireModel):
    """A named schema.

    Attributes:
        schema_: The schema; properties are written in its order.
        strict: Refuse keywords that cannot be enforced.
    """

    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool = False


class ResponseFormat(WireModel):
    """OpenAI's form.

    Attributes:
        schema_: llama.cpp's place for a schema, beside `json_object`.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[Schema, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            message = "it is required by the type 'json_schema'"
            raise PydanticCustomError("missing_schema", message, {"at": ".json_schema"})
        return self


class StructuredOutputs(WireModel):
    """vLLM's form: one of the first five.

    Attributes:
        json_: A JSON Schema.
        regex: A regular expression of the whole text.
        choice: The text is one of these.
        grammar: A Lark or GBNF grammar.
        json_object: Any JSON object.
        disable_any_whitespace: JSON without whitespace.
        whitespace_pattern: What may stand between JSON tokens.
    """

    unsupported: ClassVar = {"structural_tag": (), "disable_additional_properties": (False,)}

    json_: Annotated[SchemaOrText, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool = False
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        exactly_one(
            needed=False,
            json=self.json_,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object or None,
        )
        return self


class StructuredFields(WireModel):
    """All names under which clients ask for a form of the text.

    Attributes:
        guided_json: Earlier vLLM's `structured_outputs.json`; so on for the other `guided_` fields.
        json_schema: SGLang's and llama.cpp's.
        regex: SGLang's.
        ebnf: SGLang's.
        grammar: llama.cpp's.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: SchemaOrText = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
