"""What is answered to chats, texts and questions about the server: for the API's description alone.

Answers are plain objects, encoded as they are made; these types say what they hold, and tests compare. A key that is
`NotRequired` is there only where the client asked for it or the answer has it.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on

from gateway.schemas.extension_answers import ProgramAnswer, ProgramNews
from gateway.schemas.prefix_answers import PrefixUsed, Retained
from gateway.schemas.tools_answers import MadeCall

OPEN = ConfigDict(extra="allow")
"""Other keys are possible; everywhere else there are none."""


class TokenLogprob(TypedDict):
    """A token that could have stood at a place."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TypedDict):
    """A token of the content, with its true bytes."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """One entry for each token of the content."""

    content: list[ContentLogprob]
    refusal: None


class PromptLogprob(TypedDict):
    """A token that could have stood in the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each prompt token a map from ids to what is known of them; null for the first."""


class CalledFunction(TypedDict):
    """A function of the request's tools; the arguments are JSON text."""

    name: str
    arguments: str


class CalledTool(TypedDict):
    """A call that the model made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(TypedDict):
    """What the model said. Settings of the server can give its thinking other names."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[CalledTool]]
    server_tool_calls: NotRequired[list[MadeCall]]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class PromptTokensDetails(TypedDict):
    """How many prompt tokens the prefix cache had."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """How many tokens are thinking, and how many were guessed ahead, rightly and wrongly."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(TypedDict):
    """Tokens counted: the prompt once, the answers together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChatCompletion(TypedDict):
    """The whole answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: NotRequired[list[int]]
    extension: NotRequired[ProgramAnswer]
    kv: NotRequired[PrefixUsed]
    retention: NotRequired[Retained]


class FunctionPiece(TypedDict):
    """The name, then pieces of the arguments."""

    name: NotRequired[str]
    arguments: str


class CallPiece(TypedDict):
    """A piece of a call; the first one says its id, type and name, once."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionPiece


class ChatDelta(TypedDict):
    """What a chunk adds to the message."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[CallPiece]]
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]


class ChatChunkChoice(TypedDict):
    """More of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """An event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    prompt_token_ids: NotRequired[list[int]]
    usage: NotRequired[CompletionUsage | None]
    extension: NotRequired[ProgramNews | ProgramAnswer]
    kv: NotRequired[PrefixUsed]
    retention: NotRequired[Retained]
    server_tool_event: NotRequired[MadeCall]


class TextLogprobs(TypedDict):
    """Parallel lists over the tokens of a text; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TypedDict):
    """One continuation."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class TextCompletion(TypedDict):
    """The whole answer to a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage
    extension: NotRequired[ProgramAnswer]
    kv: NotRequired[PrefixUsed]
    retention: NotRequired[Retained]


class TextChunkChoice(TypedDict):
    """More of one continuation."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class TextCompletionChunk(TypedDict):
    """An event of a streamed text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChunkChoice]
    usage: NotRequired[CompletionUsage | None]
    extension: NotRequired[ProgramNews | ProgramAnswer]
    kv: NotRequired[PrefixUsed]
    retention: NotRequired[Retained]


class RenderedChat(TypedDict):
    """What a chat would give the model, and how it would be sampled."""

    object: Literal["chat.completion.render"]
    model: str
    prompt: str
    token_ids: list[int]
    sampling_params: dict[str, Any]


class Tokens(TypedDict):
    """A text as tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class Detokenized(TypedDict):
    """Tokens as a text."""

    prompt: str


class Model(TypedDict):
    """A name that a model is served under; its context length is not known while no engine is there."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None


class ModelList(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class State(TypedDict):
    """How the server is."""

    status: Literal["ok", "ready"]


class Places(TypedDict):
    """Paths where everything begins."""

    server: Literal["wye"]
    api: str
    console: str
    docs: str


class Version(TypedDict):
    """Which server it is."""

    version: str
