"""The model asks for tools, the server runs them, the answers return, until the model stops asking."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from extensions.programs.answers import AnswerWatch, ToolCall, free_watch
from extensions.programs.contexts import ScriptContext
from extensions.programs.faults import invalid, to_fault
from extensions.programs.generating import Completion, GenerateFields
from extensions.programs.tool_calls import ScriptToolCall, catalog_of
from extensions.tools.catalog import REPEATABLE, ToolInfo

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

MAX_ROUNDS = 100
"""Most rounds of one loop."""

MAX_CALLS = 32
"""Calls of one answer that are run; the model is told of those that are not."""


class ToolLoop:
    """One loop over one context.

    What does no harm begins as soon as the model has written the call to its end, while it goes on writing; all else
    when the answer is whole. A call that fails is told to the model like any answer.

    Args:
        scope: The run.
        ctx: The conversation.
        tools: What the model may call, by name.
        max_rounds: Answers whose calls are run.
        asked: How it generates.
    """

    def __init__(
        self,
        scope: RunScope,
        ctx: ScriptContext,
        tools: Mapping[str, ToolInfo],
        *,
        max_rounds: int,
        asked: GenerateFields,
    ) -> None:
        self._scope = scope
        self._ctx = ctx
        self._tools = tools
        self._max_rounds = max_rounds
        self._asked = asked
        self._started: dict[str, ScriptToolCall] = {}

    @classmethod
    async def begin(
        cls,
        scope: RunScope,
        ctx: object,
        tools: object,
        *,
        max_rounds: object,
        emit: object,
        fields: Mapping[str, Any],
    ) -> ToolLoop:
        """Checks what a script gave, and tells the model of the tools.

        Raises:
            ValueError: Something of it is not what it must be (`invalid_argument`).
            LookupError: A tool is not there (`tool_not_found`).
        """
        if not isinstance(ctx, ScriptContext):
            raise invalid("ctx must be a context")
        if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or not 1 <= max_rounds <= MAX_ROUNDS:
            raise invalid(f"max_rounds must be a whole number from 1 to {MAX_ROUNDS}")
        asked = GenerateFields.read(fields, scope, logprobs=None, emit=emit)
        offered = await _offered(scope, tools)
        await ctx.offer([one.as_function() for one in offered])
        return cls(scope, ctx, {one.name: one for one in offered}, max_rounds=max_rounds, asked=asked)

    async def run(self) -> Completion:
        """Runs it to its end; returns the last answer, with the calls in it that were not run.

        Raises:
            EngineError: The engine refuses a generation or gives it up.
        """
        for number in range(self._max_rounds + 1):
            self._started = {}
            try:
                answer = await self._ctx.answer(self._asked, self._watch, shows_content=True)
                calls = answer.tool_calls
                is_for_client = any(call["name"] not in self._tools for call in calls)
                if not calls or is_for_client or number == self._max_rounds:
                    return answer
                results = await asyncio.gather(*(self._result(call, at) for at, call in enumerate(calls)))
            finally:
                await self._give_up()
            await self._ctx.append(results)
        raise AssertionError("unreachable")

    def _watch(self, history: Sequence[int]) -> AnswerWatch:
        offered = [tool.get("function", {}).get("name", "") for tool in self._scope.request.tools]
        scope = self._scope
        return free_watch(scope.text, scope.tool_format, [*self._tools, *offered], history, self._on_call)

    def _on_call(self, call: ToolCall) -> None:
        info = self._tools.get(call["name"])
        if info is not None and info.effect in REPEATABLE and len(self._started) < MAX_CALLS:
            self._start(call, info)

    def _start(self, call: ToolCall, info: ToolInfo) -> ScriptToolCall:
        started = ScriptToolCall(self._scope, info.name, call["arguments"], None, info.effect)
        self._started[call["id"]] = started
        return started

    async def _result(self, call: ToolCall, at: int) -> dict[str, Any]:
        """What the model is told of a call."""
        told = {"role": "tool", "tool_call_id": call["id"], "name": call["name"]}
        if at >= MAX_CALLS:
            return {**told, "content": f"error: at most {MAX_CALLS} calls of one answer are run"}
        await self._tell("tool_call", {"id": call["id"], "name": call["name"], "arguments": call["arguments"]})
        started = self._started.get(call["id"]) or self._start(call, self._tools[call["name"]])
        is_error = True
        try:
            result = await started.answer()
            is_error, text = result.is_error, result.text
        except Exception as error:
            seen = to_fault(error)
            if seen is None:
                raise
            text = f"error: {seen}"
        await self._tell("tool_result", {"id": call["id"], "name": call["name"], "is_error": is_error})
        return {**told, "content": text}

    async def _tell(self, kind: str, data: dict[str, Any]) -> None:
        if self._asked.emit:
            await self._scope.emit_event(kind, data)

    async def _give_up(self) -> None:
        """Ends what was begun and is not wanted any more."""
        await asyncio.gather(*(one.cancel() for one in self._started.values()))


async def _offered(scope: RunScope, tools: object) -> list[ToolInfo]:
    catalog = catalog_of(scope)
    if tools is None:
        return await catalog.names()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence) or not tools:
        raise invalid("tools must be a list of names, at least one")
    if not all(isinstance(one, str) for one in tools):
        raise invalid("tools must be a list of names")
    return [await catalog.find(name) for name in dict.fromkeys(tools)]
