"""Bodies of /v1/responses and /v1/conversations."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import Count, FiniteFloat, Int64, PositiveCount, StringList, TokenId, WireModel
from gateway.schemas.chat import MAX_TOOLS, MetadataKey, MetadataValue, TemplateKwargs
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.faults import TAG
from gateway.schemas.items import Items
from gateway.schemas.prefixes import PrefixUse
from gateway.schemas.retention import RetentionWish
from gateway.schemas.sampling import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORDS,
    MAX_STOP_IDS,
    MAX_TOP_LOGPROBS,
    BadWord,
    Fraction,
    LogitBias,
    Penalty,
)
from gateway.schemas.tools import FunctionDefinition
from gateway.schemas.tools_mcp import McpTool

Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
StoredId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]

LOGPROBS = "message.output_text.logprobs"
"""The one value of `include` that changes an answer here; the others ask for what no answer holds."""

INCLUDABLE = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
MAX_INCLUDES = 32


class ResponseStreamOptions(WireModel):
    """How a stream looks; `include_obfuscation` is accepted, events are never padded."""

    include_obfuscation: bool = False


class FunctionTool(FunctionDefinition):
    """A function that the model may call, without the nesting of chat."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "function":
            message = "tools of type '{kind}' are not offered by this server"
            raise PydanticCustomError("unsupported_tool", message, {"at": ".type", "kind": kind[:80]})
        return data

    def for_chat(self) -> dict[str, Any]:
        """The same tool as chat requests spell it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


AnyTool = Annotated[
    Annotated[FunctionTool, Tag(f"{TAG}function")] | Annotated[McpTool, Tag(f"{TAG}mcp")],
    Discriminator(lambda value: TAG + ("mcp" if _type_of(value) == "mcp" else "function")),
]
"""A function of the client, or a server whose tools are called here."""


def _type_of(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


class TextFormat(WireModel):
    """What the text must look like.

    Attributes:
        schema_: The JSON Schema; `schema` on the wire.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.name is None:
            raise PydanticCustomError("missing_name", "a json_schema needs 'name'", {"at": ".name"})
        if self.type == "json_schema" and self.schema_ is None:
            raise PydanticCustomError("missing_schema", "a json_schema needs 'schema'", {"at": ".schema"})
        return self


class TextOptions(WireModel):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(WireModel):
    """How much a reasoning model thinks; summaries are never made, so asking for one changes nothing."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationRef(WireModel):
    """A conversation by its id."""

    id: StoredId


ConversationParam = Annotated[
    ConversationRef,
    BeforeValidator(
        lambda value: {"id": value} if isinstance(value, str) else value, json_schema_input_type=str | ConversationRef
    ),
]


class PromptFields(WireModel):
    """What makes the prompt of a response; counting its tokens takes the same."""

    unsupported: ClassVar = {"prompt": (), "context_management": ([],)}

    model: str | None = None
    input: Items = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: StoredId | None = None
    conversation: ConversationParam | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)

    @property
    def functions(self) -> list[FunctionTool]:
        """Those of its tools that the client runs."""
        return [tool for tool in self.tools if isinstance(tool, FunctionTool)]

    @property
    def servers(self) -> list[tuple[int, McpTool]]:
        """Servers whose tools are called here, with their places among the tools."""
        return [(number, tool) for number, tool in enumerate(self.tools) if isinstance(tool, McpTool)]

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.previous_response_id is not None and self.conversation is not None:
            message = "it excludes previous_response_id"
            raise PydanticCustomError("exclusive", message, {"at": "conversation"})
        return self


class ResponseRequest(PromptFields):
    """One response.

    Attributes:
        store: None where the client left it open: stored if this server stores at all.
        max_tool_calls: Most calls that the server makes for the response.
        top_logprobs: None asks for none unless `include` does.
        prefix: A history that is kept, which the conversation goes behind.
        retention: For how long the KV is to be kept when the answer is there.
    """

    unsupported: ClassVar = {
        **PromptFields.unsupported,
        "modalities": (["text"], []),
        "moderation": (),
        "n": (1,),
        "structured_outputs": ({},),
        "response_format": ({"type": "text"},),
    }

    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    background: bool = False
    store: bool | None = None
    include: Annotated[list[INCLUDABLE], Field(max_length=MAX_INCLUDES)] = Field(default_factory=list)
    max_output_tokens: PositiveCount | None = None
    max_tool_calls: PositiveCount | None = None
    metadata: Metadata = Field(default_factory=dict)
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0)] | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: Int64 | None = None
    stop: StringList = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    min_tokens: Count = 0
    ignore_eos: bool = False
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] = Field(default_factory=list)
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_IDS)] | None = None
    skip_special_tokens: bool = True
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: Int64 = 0
    user: str | None = None
    safety_identifier: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h", "in-memory"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    extension: ExtensionFields | None = None
    prefix: PrefixUse | None = None
    retention: RetentionWish | None = None

    @model_validator(mode="after")
    def _check_storing(self) -> Self:
        if self.background and self.store is False:
            raise PydanticCustomError("exclusive", "it needs 'store' to be true", {"at": "background"})
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token, or None for no log-probabilities at all."""
        if self.top_logprobs is None:
            return 0 if LOGPROBS in self.include else None
        return self.top_logprobs if self.top_logprobs or LOGPROBS in self.include else None


class InputTokensRequest(PromptFields):
    """A prompt whose tokens are to be counted."""

    unsupported: ClassVar = {**PromptFields.unsupported, "prefix": ()}


class ConversationRequest(WireModel):
    """A new conversation."""

    items: Items = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)


class ConversationUpdate(WireModel):
    """What of a conversation can be changed."""

    metadata: Metadata


class ConversationItemsRequest(WireModel):
    """Items to add to a conversation."""

    items: Annotated[Items, Field(min_length=1)]
