"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.text.chat_template import RESERVED
from gateway.schemas.base import MAX_FIELDS, PositiveCount, WireModel
from gateway.schemas.messages import Message
from gateway.schemas.sampling import MAX_TOP_LOGPROBS, SamplingFields
from gateway.schemas.tools import Tool

MAX_MESSAGES = 65_536
"""Most turns of one conversation: refused in no time, however large the body."""

MAX_TOOLS = 4096
"""Most tools of one request."""

MAX_SERVER_TOOLS = 256
"""Most names of tools of the server in one request."""

ServerToolName = Annotated[str, StringConstraints(min_length=1, max_length=400)]

MAX_DOCUMENTS = 1024
"""Most documents of one request."""


def _refuse_reserved(kwargs: object) -> object:
    if isinstance(kwargs, dict):
        for key in RESERVED & kwargs.keys():
            raise PydanticCustomError("template_key", "'{key}' cannot be set here", {"at": f".{key}", "key": key})
    return kwargs


TemplateKwargs = Annotated[
    dict[str, Any],
    BeforeValidator(_refuse_reserved, json_schema_input_type=dict[str, Any]),
    Field(max_length=MAX_FIELDS),
]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class TemplateFields(WireModel):
    """What a chat template is given; chat and tokenize share it.

    Attributes:
        add_generation_prompt: Open an assistant turn after the messages; true unless the last one is continued.
        continue_final_message: The last message is the beginning of the answer.
        add_special_tokens: Put the tokenizer's opening token before what the template wrote; most templates write it.
        chat_template_kwargs: More variables for the template.
    """

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_prompt_end(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            message = "it excludes add_generation_prompt"
            raise PydanticCustomError("exclusive", message, {"at": "continue_final_message"})
        return self

    @property
    def opens_turn(self) -> bool:
        """Whether the prompt ends with the opening of an assistant turn."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class ChatRequest(TemplateFields, SamplingFields):
    """One chat completion.

    Attributes:
        documents: For templates of models that answer from documents.
        echo: Begin the content with that of the last message, if that is an assistant's.
        stream_reasoning: False: stream the thinking in one piece, when it is over.
        server_tools: Registered tools that the model may call and the server runs: `tool`, `server`, `server/tool`.
        max_tool_calls: Most calls that the server makes for the answer.
    """

    unsupported: ClassVar = {
        **SamplingFields.unsupported,
        "audio": (),
        "chat_template": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"], []),
        "moderation": (),
        "return_hidden_states": (False,),
        "thinking_token_budget": (),
        "web_search_options": (),
    }

    max_completion_tokens: PositiveCount | None = None
    max_tokens: PositiveCount | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=-1, le=MAX_TOP_LOGPROBS)] = 0
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    server_tools: Annotated[list[ServerToolName], Field(max_length=MAX_SERVER_TOOLS)] = Field(default_factory=list)
    max_tool_calls: PositiveCount | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS)] = Field(default_factory=list)
    echo: bool = False
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool = False
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] = Field(default_factory=dict)
    safety_identifier: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("exclusive", "it needs 'logprobs' to be true", {"at": "top_logprobs"})
        return self

    @property
    def asked_tokens(self) -> int | None:
        """Output tokens asked for, or None for all that fit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token, or None for no log-probabilities at all."""
        if not self.logprobs:
            return None
        return MAX_TOP_LOGPROBS if self.top_logprobs == -1 else self.top_logprobs
