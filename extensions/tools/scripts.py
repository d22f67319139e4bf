"""Tools that are programs: each call is a run of its own, for the account of whoever asked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from extensions.errors import ArgumentsInvalid, ProgramError
from extensions.output import Usage
from extensions.programs.request import ProgramOutcome, ProgramRequest, ProgramUsage
from extensions.tools.catalog import ToolCaller, ToolResult
from extensions.tools.errors import ToolArgumentsInvalid, ToolFailed
from extensions.tools.spec import ToolSpec

if TYPE_CHECKING:
    from extensions.runtime import Runtime


class ScriptTools:
    """Runs them. They reach the model and nothing else: no tools, no hosts.

    Args:
        runtime: Where they run.
        model: The name that they see of the model.
    """

    def __init__(self, runtime: Runtime, model: str = "") -> None:
        self._runtime = runtime
        self._model = model

    async def run(self, spec: ToolSpec, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        """Runs one to its end; cancelling ends it, and all that it held is free then.

        Raises:
            ToolArgumentsInvalid: The program wants other arguments than its tool says.
            ToolFailed: It raised, or cannot run.
        """
        assert spec.script is not None
        most = self._runtime.programs.limits
        limits = replace(most, wall_s=min(most.wall_s, spec.timeout_s))
        guard = caller.guard
        if guard is not None:
            limits = guard.left_of(limits)
        request = ProgramRequest(args=arguments, model=self._model, id=f"tool_{uuid.uuid4().hex}")
        try:
            program = await self._runtime.check_program(spec.script.source)
            run = await self._runtime.run_program(
                program, request, limits=limits, account=caller.account, salt=caller.salt, parent=guard
            )
            try:
                return _as_result(await run.result(), spec.max_output_bytes)
            finally:
                if guard is not None:  # which has counted it, but for this
                    guard.absorb(run.usage)
                elif caller.note is not None:
                    caller.note(_tokens(run.usage))
        except ArgumentsInvalid as error:
            raise ToolArgumentsInvalid(f"{spec.name}: {error}", error.param) from None
        except ProgramError as error:
            raise ToolFailed(f"{spec.name}: {error}") from None


def _tokens(used: ProgramUsage) -> Usage:
    return Usage(
        num_prompt_tokens=used.num_prompt_tokens,
        num_completion_tokens=used.num_completion_tokens,
        num_cached_tokens=used.num_cached_tokens,
        kv_kib_ms=used.kv_kib_ms,
    )


def _as_result(outcome: ProgramOutcome, max_bytes: int) -> ToolResult:
    has_json = outcome.result is not None
    text = json.dumps(outcome.result, ensure_ascii=False) if has_json else outcome.content or ""
    data = text.encode("utf-8", "replace")
    if len(data) > max_bytes:
        return ToolResult(text=data[:max_bytes].decode("utf-8", "ignore"), is_cut=True)
    return ToolResult(text=text, json=outcome.result, has_json=has_json)
