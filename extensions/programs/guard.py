"""What a run uses, counted, and its end at a limit, in which the script has no say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from extensions.errors import ScriptLimitExceeded
from extensions.programs.faults import RunEnded, fault
from extensions.programs.limits import ProgramLimits
from extensions.programs.request import ProgramUsage

if TYPE_CHECKING:
    from extensions.programs.turns import Place

T = TypeVar("T", int, float)

MAX_DEPTH = 4
"""Programs that may have started each other, the first one included."""


class Guard:
    """Counts for one run. Whatever exceeds a limit ends it: the worker is stopped, however much the script catches.

    Attributes:
        limits: What it may use.
        usage: What it used.
        failure: What ended it; None while nothing did.
        on_failure: Called once, in the event loop, after the first failure.
        place: The run's among those that compute; see `extensions.programs.turns`. That of the parent for a child.

    A script's calls arrive in threads of the sandbox; all that counts them may be called there. What a child uses is
    counted for its parent too.

    Args:
        limits: See above.
        parent: Of the run that started this one.
        age_s: Seconds since admission, of a run that is gone on with.
    """

    def __init__(self, limits: ProgramLimits, parent: Guard | None = None, age_s: float = 0.0) -> None:
        self.limits = limits
        self.usage = ProgramUsage()
        self.failure: Exception | None = None
        self.on_failure: Callable[[], object] | None = None
        self.place: Place | None = None
        self._parent = parent
        self._children: set[Guard] = set()
        self._held_bytes = 0
        self._held_kib_ms = 0
        self._depth: int = 1 if parent is None else parent._depth + 1
        self._counting = threading.Lock()
        self._num_contexts = 0
        self._start_s = time.monotonic() - age_s
        self._loop = asyncio.get_running_loop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since admission."""
        return time.monotonic() - self._start_s

    @property
    def decode_left(self) -> int:
        """Tokens that may still be generated, by it and by those that started it."""
        left = max(self.limits.decode_tokens - self.usage.num_completion_tokens, 0)
        return left if self._parent is None else min(left, self._parent.decode_left)

    def fail(self, error: Exception) -> None:
        """Ends the run with an error, unless it has ended."""
        if self.failure is None:
            self.failure = error
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self.on_failure is not None:
            self.on_failure()

    @property
    def calls_left(self) -> int:
        """Calls that the script may still make, and those that started it."""
        left = max(self.limits.host_calls - self.usage.num_host_calls, 0)
        return left if self._parent is None else min(left, self._parent.calls_left)

    def count_call(self, count: int = 1) -> None:
        """One call of what the server gives the script; or some more or fewer than were counted."""
        if self.failure is not None:
            raise RunEnded
        if self._parent is not None:
            self._parent.count_call(count)
        usage = self.usage
        with self._counting:
            usage.num_host_calls += count
        if usage.first_call_s is None:
            usage.first_call_s = self.elapsed_s
        self._hold("host_calls", usage.num_host_calls, self.limits.host_calls)

    def count_prefill(self, num_tokens: int) -> None:
        """Tokens of the script's that are computed now."""
        if self._parent is not None:
            self._parent.count_prefill(num_tokens)
        self.usage.num_prompt_tokens += num_tokens
        self._hold("prefill_tokens", self.usage.num_prompt_tokens, self.limits.prefill_tokens)

    def count_again(self, num_tokens: int, num_cached: int) -> None:
        """Tokens of an earlier life of the run that are computed once more; no limit stands against that."""
        self.usage.num_prompt_tokens += num_tokens
        self.usage.num_cached_tokens += num_cached

    def count_decode(self, num_tokens: int) -> None:
        """Tokens that were generated."""
        if self._parent is not None:
            self._parent.count_decode(num_tokens)
        self.usage.num_completion_tokens += num_tokens
        self._hold("decode_tokens", self.usage.num_completion_tokens, self.limits.decode_tokens)

    def count_kv(self, kib_ms: int) -> None:
        """What was charged for KV."""
        if self._parent is not None:
            self._parent.count_kv(kib_ms)
        self.usage.kv_kib_ms += kib_ms

    @property
    def limits_kv(self) -> bool:
        """Whether there is a limit of KV for it, its own or one of those that started it."""
        own = self.limits.kv_bytes is not None or self.limits.kv_byte_seconds is not None
        return own or (self._parent is not None and self._parent.limits_kv)

    def note_kv(self, num_bytes: int, kib_ms: int) -> None:
        """What its contexts are charged for now, and what those that it has were charged in all."""
        self._held_bytes, self._held_kib_ms = num_bytes, kib_ms
        if self._parent is not None:
            self._parent._children.add(self)
        self._hold_kv()

    def note_no_kv(self) -> None:
        """It has ended: what it was charged is counted by then, or is about to be."""
        self._held_bytes = self._held_kib_ms = 0
        if self._parent is not None:
            self._parent._children.discard(self)

    def _held(self) -> tuple[int, int]:
        below = [child._held() for child in self._children]
        num_bytes = self._held_bytes + sum(one for one, _ in below)
        return num_bytes, self._held_kib_ms + sum(one for _, one in below)

    def _hold_kv(self) -> None:
        if self._parent is not None:
            self._parent._hold_kv()
        num_bytes, kib_ms = self._held()
        if self.limits.kv_bytes is not None:
            self._hold("kv_bytes", num_bytes, self.limits.kv_bytes)
        if self.limits.kv_byte_seconds is not None:
            used = (self.usage.kv_kib_ms + kib_ms) * 1024 / 1000
            self._hold("kv_byte_seconds", used, self.limits.kv_byte_seconds)

    def count_tool_call(self) -> None:
        """One call of a tool."""
        if self._parent is not None:
            self._parent.count_tool_call()
        self.usage.num_tool_calls += 1
        self._hold("tool_calls", self.usage.num_tool_calls, self.limits.tool_calls)

    def count_http_call(self) -> None:
        """One request of the script's own to somewhere."""
        if self._parent is not None:
            self._parent.count_http_call()
        self.usage.num_http_calls += 1
        self._hold("http_calls", self.usage.num_http_calls, self.limits.http_calls)

    def count_output(self, num_bytes: int) -> None:
        """Bytes for the client."""
        self.usage.output_bytes += num_bytes
        self._hold("output_bytes", self.usage.output_bytes, self.limits.output_bytes)

    def count_log(self, num_bytes: int) -> None:
        """Bytes printed."""
        self.usage.log_bytes += num_bytes
        self._hold("log_bytes", self.usage.log_bytes, self.limits.log_bytes)

    def open_contexts(self, count: int) -> None:
        """So many contexts more.

        Raises:
            MemoryError: They would be too many at once; the script may release some and go on.
        """
        most = self.limits.contexts
        if self._num_contexts + count > most:
            raise fault("limit_exceeded", f"{self._num_contexts + count} contexts at once, at most {most} are allowed")
        if self._parent is not None:
            self._parent.open_contexts(count)
        self._num_contexts += count
        self.usage.num_contexts += count
        self.usage.max_contexts = max(self.usage.max_contexts, self._num_contexts)

    def close_context(self) -> None:
        """One context less."""
        self._num_contexts -= 1
        if self._parent is not None:
            self._parent.close_context()

    # -- children ---------------------------------------------------------------------------------------------------

    def open_child(self) -> int:
        """One program more that is started; returns how many that makes.

        Raises:
            MemoryError: Programs would start programs too deep (`limit_exceeded`).
        """
        if self._depth >= MAX_DEPTH:
            raise fault("limit_exceeded", f"programs start programs {MAX_DEPTH - 1} deep at most")
        return self._count_child()

    def _count_child(self) -> int:
        if self._parent is not None:
            self._parent._count_child()
        self.usage.num_children += 1
        self._hold("children", self.usage.num_children, self.limits.children)
        return self.usage.num_children

    def left_of(self, limits: ProgramLimits) -> ProgramLimits:
        """Limits for a child: those given, and no more than this run may still use."""
        own, used = self.limits, self.usage
        return replace(
            limits,
            wall_s=min(limits.wall_s, max(own.wall_s - self.elapsed_s, 0.001)),
            host_calls=min(limits.host_calls, max(own.host_calls - used.num_host_calls, 1)),
            prefill_tokens=min(limits.prefill_tokens, max(own.prefill_tokens - used.num_prompt_tokens, 1)),
            decode_tokens=min(limits.decode_tokens, max(self.decode_left, 1)),
            contexts=min(limits.contexts, max(own.contexts - self._num_contexts, 1)),
            children=min(limits.children, max(own.children - used.num_children, 1)),
            tool_calls=min(limits.tool_calls, max(own.tool_calls - used.num_tool_calls, 1)),
            http_calls=min(limits.http_calls, max(own.http_calls - used.num_http_calls, 1)),
            kv_bytes=_least(limits.kv_bytes, own.kv_bytes),
            kv_byte_seconds=_least(limits.kv_byte_seconds, own.kv_byte_seconds),
        )

    def take_over(self, usage: ProgramUsage) -> None:
        """Counts what a child used in an earlier life of the run, and is not used again."""
        if self._parent is not None:
            self._parent.take_over(usage)
        used = self.usage
        used.num_prompt_tokens += usage.num_prompt_tokens
        used.num_cached_tokens += usage.num_cached_tokens
        used.num_completion_tokens += usage.num_completion_tokens
        used.num_host_calls += usage.num_host_calls
        used.num_generations += usage.num_generations
        used.num_contexts += usage.num_contexts
        used.num_children += usage.num_children
        used.num_tool_calls += usage.num_tool_calls
        used.num_http_calls += usage.num_http_calls

    def absorb(self, usage: ProgramUsage) -> None:
        """Adds what a child that has ended used and that was not counted here while it did."""
        self.usage.num_cached_tokens += usage.num_cached_tokens
        self.usage.num_generations += usage.num_generations

    def _hold(self, limit: str, used: float, allowed: float) -> None:
        if used > allowed:
            self.fail(ScriptLimitExceeded(limit, used, allowed))
            raise RunEnded


def _least(one: T | None, other: T | None) -> T | None:
    """The smaller of two limits, None being none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
