"""What a script reaches as `lm`; see `LM` in the stubs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Any

from extensions.journal.effects import sleep, value
from extensions.programs.adapters import adapter_names, read_adapter
from extensions.programs.capabilities import capabilities
from extensions.programs.children import ChildCalls
from extensions.programs.constraints import ScriptConstraint, spec_of
from extensions.programs.contexts import Content, ScriptContext
from extensions.programs.faults import fault, invalid
from extensions.programs.history import History
from extensions.programs.http import ScriptHttp
from extensions.programs.inbox import InboxCalls
from extensions.programs.mail import MailCalls
from extensions.programs.options import flag, token_ids
from extensions.programs.pipelines import ForwardCalls
from extensions.programs.prefixes import PrefixCalls
from extensions.programs.samplers import ScriptProgram, make_program
from extensions.programs.scope import RunScope
from extensions.programs.tool_constraint import resolved
from extensions.programs.tools import ToolCalls
from extensions.programs.values import ScriptStore


class ScriptModel:
    """The served model; see `Model` in the stubs."""

    def __init__(self, scope: RunScope) -> None:
        info = scope.engine.info
        self.name = scope.request.model
        self.vocab_size = info.vocab_size
        self.max_tokens = info.limit_tokens
        self.page_tokens = info.page_size
        self.eos_token_ids = list(info.eos_token_ids)
        self.adapters = adapter_names(scope)
        self.sites = {site: list(shape) for site, shape in info.sites.items()}
        self.capabilities = capabilities(info, scope.world)

    async def require(self, capability: str) -> None:
        """Raises if the server cannot do something."""
        if capability not in self.capabilities:
            known = ", ".join(self.capabilities)
            raise fault("capability_missing", f"this server has no {str(capability)[:80]!r}; it has {known}")


class ScriptLM(ChildCalls, ForwardCalls, InboxCalls, MailCalls, PrefixCalls, ToolCalls):
    """The model and the world, for one run."""

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self.model = ScriptModel(scope)
        self.store = ScriptStore(scope)
        self.http = ScriptHttp(scope)

    async def context(self, content: Content = (), *, adapter: str | None = None) -> ScriptContext:
        """A new context."""
        scope = self._scope
        named = read_adapter(adapter, scope)
        scope.guard.open_contexts(1)
        context = ScriptContext(scope, History(scope, scope.open_context(named)))
        try:
            await context.begin(content)
        except BaseException:
            context.let_go()
            raise
        return context

    async def constraint(self, constrain: Any) -> ScriptConstraint:
        """A constraint to use several times; compiled when this returns."""
        found = await resolved(constrain, self._scope)
        spec = spec_of(found)
        if spec is None:
            raise fault("constraint_invalid", "a constraint must not be None")
        await self._scope.engine.compile(spec)
        return found if isinstance(found, ScriptConstraint) else ScriptConstraint(spec)

    async def program(self, source: str, **parameters: Any) -> ScriptProgram:
        """A device program to draw tokens by."""
        return make_program(source, parameters, self._scope.engine.info.vocab_size)

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text."""
        if not isinstance(text, str):
            raise invalid("text must be text")
        return await self._scope.encode(text)

    async def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        ids = token_ids(tokens, "tokens")
        info = self._scope.engine.info
        if ids and not (min(ids) >= 0 and max(ids) < info.vocab_size):
            raise invalid(f"token ids must be between 0 and {info.vocab_size - 1}")
        if len(ids) > info.limit_tokens:
            raise invalid(f"tokens has {len(ids)} ids, at most {info.limit_tokens} are allowed")
        return self._scope.text.tokenizer.decode(ids, skip_special=flag(skip_special, "skip_special"))

    async def emit(self, text: str) -> None:
        """Streams text."""
        if not isinstance(text, str):
            raise invalid("text must be text")
        await self._scope.emit(text)

    async def emit_event(self, type: str, data: Any = None) -> None:
        """Sends an event of the script's own."""
        if not isinstance(type, str) or not 1 <= len(type) <= 128:
            raise invalid("type must be a text of 1 to 128 characters")
        await self._scope.emit_event(type, data)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise invalid("seconds must be a number")
        if seconds > self._scope.guard.limits.wall_s:
            raise invalid(f"the program may not run for {seconds:g} s")
        await sleep(float(seconds))

    def now(self) -> float:
        """Seconds since 1970."""
        return value("now", time.time)

    def random(self) -> float:
        """A number from 0 to below 1."""
        return value("random", random.random)
