"""What a program is given and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from extensions.programs.planner import Lane


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRequest:
    """The request a program answers; the script sees all of it but `strict_path`, `trace` and `exports_as`.

    Attributes:
        messages: Chat messages as chat templates take them; empty for a text completion.
        prompt: Text of a text completion, or its token ids; empty for a chat.
        model: The name that the client used.
        params: The client's sampling fields that were set, under their wire names.
        tools: Tools as chat templates take them.
        args: The client's arguments, not yet checked.
        stream: The client reads while the program runs.
        id: Of the run.
        strict_path: The slowest lane that the program may take; work that needs a slower one raises inside it.
        trace: Whoever reads wants to know what the program does as it happens: `TraceNoted`.
        exports_as: Name under which a context that `main` returns is exported; empty to have it return none.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    prompt: str | Sequence[int] = ""
    model: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    id: str = ""
    strict_path: Lane | None = None
    trace: bool = False
    exports_as: str = ""


@dataclass(frozen=True, slots=True)
class TextEmitted:
    """Text of the answer; all such texts of a run joined are `ProgramOutcome.content`.

    Attributes:
        text: The text.
        source: Names what gave it out, where a journal is kept: the texts of one source follow each other.
    """

    text: str
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class EventEmitted:
    """An event of the script's own for the client.

    Attributes:
        type: The script's name for it.
        data: Any JSON value.
        source: Names what sent it, where a journal is kept.
    """

    type: str
    data: Any
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LogWritten:
    """What the script printed, in pieces as they come."""

    text: str


@dataclass(frozen=True, slots=True)
class TraceNoted:
    """Something that the program does or uses, for a request that wants to know.

    Attributes:
        at_ms: Milliseconds since the run was admitted.
        type: What happened; see `extensions.programs.trace`.
        data: What is known of it; JSON.
    """

    at_ms: float
    type: str
    data: Mapping[str, Any]


RunEvent = TextEmitted | EventEmitted | LogWritten | TraceNoted


@dataclass(kw_only=True, slots=True)
class ProgramUsage:
    """What a run used, up to now.

    Attributes:
        num_prompt_tokens: Tokens that were computed or taken from a cache before something was generated, over all
            generations; what stayed in a context between two of them counts once.
        num_cached_tokens: Those of them that came from a cache.
        num_completion_tokens: Tokens generated, over all generations.
        num_host_calls: Calls of what the server gives the script.
        num_generations: Generations begun.
        num_contexts: Contexts made, forks included.
        num_children: Programs started.
        max_contexts: Contexts that existed at once.
        output_bytes: Text and events sent to the client.
        log_bytes: Printed.
        wall_s: Seconds since admission.
        first_call_s: Seconds from admission to the script's first call of the server; None if there was none.
        num_tool_calls: Calls of tools.
        num_http_calls: Requests of its own to other servers.
        kv_kib_ms: What was charged for the KV of its contexts, in KiB times milliseconds; whole at its end.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_host_calls: int = 0
    num_generations: int = 0
    num_contexts: int = 0
    num_children: int = 0
    max_contexts: int = 0
    output_bytes: int = 0
    log_bytes: int = 0
    wall_s: float = 0.0
    first_call_s: float | None = None
    num_tool_calls: int = 0
    num_http_calls: int = 0
    kv_kib_ms: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOutcome:
    """What a run that ended well has to say.

    Attributes:
        content: Text of the answer: what was emitted, then what `main` returned unless that had been emitted already;
            None if there is none.
        message: What else of an assistant message `main` returned (`tool_calls`, `reasoning_content`), in OpenAI's
            form; None unless it returned such a dict.
        result: What `main` returned if it was neither text nor a message; JSON.
        finish_reason: `tool_calls` if the message has calls; `length` if `main` returned the text of a generation that
            ended at its length; else `stop`.
        exec_path: The lane that computed: one name if all work took one, else `mixed`.
        exec_reason: Why it was not the fused lane; empty if it was.
        usage: What was used.
        logs: All that was printed.
    """

    content: str | None
    message: Mapping[str, Any] | None
    result: Any
    finish_reason: Literal["stop", "length", "tool_calls"]
    exec_path: Literal["fused", "device", "host", "mixed"]
    exec_reason: str
    usage: ProgramUsage
    logs: str
