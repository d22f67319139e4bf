"""The one table of what a script sees of the server: `stubs.pyi` is the same as types, and a test compares the two.

A value crosses into the sandbox as plain data (numbers, text, lists, dicts, named tuples) or as a handle on one of the
classes below, of which only the named methods can be called and the named attributes read. A script can neither make a
handle nor read one of another run: the sandbox of each run knows handles by random ids that mean nothing outside of it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any, Protocol

from pydantic_monty import ClassInstance, ClassType

from extensions.journal.effects import value
from extensions.journal.journal import Call
from extensions.programs.attention import ScriptAttention, SlotScore
from extensions.programs.children import ChildResult
from extensions.programs.constraints import ScriptConstraint
from extensions.programs.contexts import ContextInfo, ScriptContext, ScriptMark
from extensions.programs.drafting import Drafted, ScriptDrafting
from extensions.programs.forward import ScriptForward, ScriptPass
from extensions.programs.generating import Candidate, Completion, TokenLogprob, Usage
from extensions.programs.given import ScriptRequest
from extensions.programs.http import HttpResponse, ScriptHttp
from extensions.programs.leases import ScriptLease
from extensions.programs.lm import ScriptLM, ScriptModel
from extensions.programs.mail import ScriptSubscription
from extensions.programs.pipelines import ScriptPipeline, ScriptSubmitted
from extensions.programs.samplers import ScriptProgram
from extensions.programs.stepping import Choice, ScriptDistribution, ScriptGeneration, ScriptStep
from extensions.programs.tool_calls import ScriptToolCall
from extensions.programs.tools import ScriptMcp
from extensions.programs.values import ScriptStore
from extensions.sandbox.ids import random_id
from extensions.sandbox.threads import keep_thread_state


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposed:
    """What is shown of one class.

    Attributes:
        name: Its name in the stubs.
        methods: Those that a script may call.
        attributes: Those that cross with the handle, as they are then.
        live: Those that are read when the script reads them.
        changing: Methods that end what the script has left behind on it (`ScriptContext.left_behind`).
        inner: Methods that are called by what stands behind a script alone (`extensions.sandbox.stand_ins`).
        is_value: Two that show the same are equal; others are equal to themselves alone.
    """

    name: str
    methods: frozenset[str] = frozenset()
    attributes: tuple[str, ...] = ()
    live: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    is_value: bool = False


CHANGING = frozenset(
    {"append", "prefill", "fork", "mark", "rewind", "truncate", "hide", "drop", "forget", "retain", "export", "release"}
    | {"generate", "drafting", "generation", "next", "score", "choose"}
)
"""Methods of a context that nothing else may happen beside."""

TABLE: dict[type, Exposed] = {
    ScriptRequest: Exposed(
        name="Request",
        attributes=("messages", "prompt", "model", "params", "tools", "args", "stream", "id"),
        is_value=True,
    ),
    ScriptLM: Exposed(
        name="LM",
        methods=frozenset(
            {
                "context",
                "constraint",
                "program",
                "forward",
                "pipeline",
                "tokenize",
                "decode",
                "emit",
                "emit_event",
                "sleep",
                "now",
                "random",
            }
            | {"run", "run_source", "receive", "publish", "subscribe", "push", "pull"}
            | {"prefix"}
            | {"tool", "tools", "start_tool", "tool_loop", "mcp"}
        ),
        attributes=("model", "store", "http"),
    ),
    ScriptModel: Exposed(
        name="Model",
        methods=frozenset({"require"}),
        attributes=(
            *("name", "vocab_size", "max_tokens", "page_tokens", "eos_token_ids"),
            *("adapters", "sites", "capabilities"),
        ),
    ),
    ScriptStore: Exposed(name="Store", methods=frozenset({"get", "put", "add", "delete"})),
    ScriptHttp: Exposed(name="Http", methods=frozenset({"get", "post", "request"})),
    ScriptMcp: Exposed(name="Mcp", methods=frozenset({"tools", "call"}), attributes=("server",)),
    ScriptToolCall: Exposed(
        name="ToolCall", methods=frozenset({"result", "cancel"}), attributes=("name",), live=frozenset({"status"})
    ),
    ScriptSubscription: Exposed(
        name="Subscription", methods=frozenset({"next"}), attributes=("topic",), live=frozenset({"missed"})
    ),
    ScriptContext: Exposed(
        name="Context",
        methods=CHANGING | {"info", "tokens"},
        live=frozenset({"length"}),
        changing=CHANGING,
    ),
    ScriptLease: Exposed(name="Lease", methods=frozenset({"end"}), live=frozenset({"revoked"})),
    ScriptMark: Exposed(name="Mark"),
    ScriptConstraint: Exposed(name="Constraint"),
    ScriptProgram: Exposed(name="Program"),
    ScriptForward: Exposed(
        name="Forward",
        methods=frozenset(
            {"embed_next", "embed", "state", "mask", "adapter"} | {"readout", "epilogue", "run", "on_attention"}
        ),
    ),
    ScriptPass: Exposed(name="Pass", attributes=("token", "probes", "rows", "folded", "attention")),
    ScriptAttention: Exposed(
        name="Attention",
        attributes=("layer",),
        live=frozenset({"scores", "top", "omitted_mass", "dropped", "layers"}),
    ),
    ScriptSubmitted: Exposed(name="Submitted", methods=frozenset({"result"})),
    ScriptPipeline: Exposed(
        name="Pipeline",
        methods=frozenset({"run_ahead", "submit", "submit_frame"}),
        live=frozenset({"finish_reason", "probes"}),
    ),
    ScriptDrafting: Exposed(
        name="Drafting", methods=frozenset({"next", "completion", "stop"}), attributes=("history",)
    ),
    ScriptGeneration: Exposed(
        name="Generation",
        methods=frozenset({"step", "choose", "ban", "stop", "steps", "take"}),
        inner=frozenset({"steps", "take"}),
    ),
    ScriptStep: Exposed(
        name="Step",
        attributes=("finished", "finish_reason", "token", "text", "entropy", "omitted_mass"),
        live=frozenset({"candidates"}),
        is_value=True,
    ),
    ScriptDistribution: Exposed(
        name="Distribution", attributes=("omitted_mass", "entropy"), live=frozenset({"candidates", "logprobs"})
    ),
    Completion: Exposed(
        name="Completion",
        attributes=(
            "text",
            "tokens",
            "finish_reason",
            "mean_logprob",
            "logprobs",
            "usage",
            "exec_path",
            "tool_calls",
            "probes",
        ),
        is_value=True,
    ),
}


RECORDS: tuple[type, ...] = (
    *(Candidate, ChildResult, Choice, ContextInfo, Drafted, HttpResponse, SlotScore, TokenLogprob, Usage),
)
"""Named tuples that cross as data."""

# What a script prints of them, and what its errors say of them, has the names of the stubs.
for _record in RECORDS:
    _record.__module__ = "wye"
for _cls, _exposed in TABLE.items():
    _cls.__name__ = _exposed.name


_CHANGING_ALONE = frozenset(
    {(ScriptContext, "length"), (ScriptLease, "revoked"), (ScriptPipeline, "finish_reason"), (ScriptToolCall, "status")}
)
"""Attributes that change while the script does something else: of these the journal says what the script was told."""

_CLASS_TYPES = {cls: ClassType(cls) for cls in TABLE}


class Calls(Protocol):
    """Who answers the calls of one run.

    Attributes:
        num_handles: Given out so far of those that are numbered.
    """

    num_handles: int

    def begin(self, kind: str, name: str, args: object, kwargs: object) -> Call | None:
        """Counts one call; raises if the run is over. Returns the call where a journal is kept."""
        ...

    def crossing(self, error: Exception) -> Exception:
        """What the script sees of an error."""
        ...

    async def finish(self, coro: Coroutine[Any, Any, Any], call: Call | None) -> Any:
        """Waits for an answer, as long as the run lasts."""
        ...


class Handle(ClassInstance):
    """One object of the server as a script has it."""

    def __init__(self, value: Any, calls: Calls) -> None:
        # What `ClassInstance` would work out anew for every handle is the same for all of a class.
        cls = type(value)
        exposed = TABLE[cls]
        self._exposed = exposed
        self._calls = calls
        self.value = value
        self.id = random_id()
        self._number = 0
        if not exposed.is_value:
            calls.num_handles += 1
            self._number = calls.num_handles
        self.class_type = _CLASS_TYPES[cls]
        self.eager_attrs = exposed.attributes
        self.lazy_attrs = exposed.live
        self.allowed_methods = exposed.methods

    def call_method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answers one call of the script."""
        keep_thread_state()
        if name not in self._exposed.methods:
            raise self.attr_error(name)
        call = self._calls.begin(self._exposed.name, name, args, kwargs)
        method = getattr(self.value, name)
        try:
            result = method(*args, **kwargs) if call is None else call.run(method, args, kwargs)
        except Exception as error:
            raise self._calls.crossing(error) from None
        if not iscoroutine(result):
            return wrap(result, self._calls)
        if name in self._exposed.changing and (left := self.value.left_behind) is not None:
            result = _after(left.stop(), result)
        return self._awaited(result, call)

    def lookup_lazy_attrs(self, name: str) -> Any:
        """Answers one reading of an attribute."""
        if name not in self._exposed.live:
            raise self.attr_error(name)
        call = self._calls.begin(self._exposed.name, f".{name}", (), {})
        if call is not None and (type(self.value), name) in _CHANGING_ALONE:
            found = call.run(value, ("attribute", lambda: getattr(self.value, name)), {})
        else:
            found = getattr(self.value, name)
        return wrap(found, self._calls)

    def get_eager_attrs(self) -> dict[str, Any]:
        """What crosses with it."""
        value, calls = self.value, self._calls
        shown = {name: wrap(getattr(value, name), calls) for name in self._exposed.attributes}
        if self._number:  # in the sandbox, what shows the same is the same
            shown["handle"] = self._number
        return shown

    def convert_value(self, /, name: str, value: Any) -> Any:
        """What becomes of an attribute on its way into the sandbox."""
        return wrap(value, self._calls)

    def attr_error(self, name: str) -> AttributeError:
        """The error of a name that is not shown."""
        return AttributeError(f"{self._exposed.name!r} object has no attribute {name!r}")

    async def _awaited(self, coro: Coroutine[Any, Any, Any], call: Call | None) -> Any:
        return wrap(await self._calls.finish(coro, call), self._calls)


async def _after(first: Coroutine[Any, Any, None], then: Coroutine[Any, Any, Any]) -> Any:
    try:
        await first
    except BaseException:
        then.close()
        raise
    return await then


def wrap(value: Any, calls: Calls) -> Any:
    """Makes handles of what must not cross as data."""
    if type(value) in TABLE:
        return Handle(value, calls)
    if type(value) is list and value and type(value[0]) in TABLE:
        return [Handle(one, calls) for one in value]
    return value
