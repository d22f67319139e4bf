"""What a run uses, counted, and its end at a limit, in which the script has no say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from extensions.errors import ScriptLimitExceeded
from extensions.programs.faults import RunEnded, fault
from extensions.programs.limits import ProgramLimits
from extensions.programs.request import ProgramUsage


class Guard:
    """Counts for one run. Whatever exceeds a limit ends it: the worker is stopped, however much the script catches.

    Attributes:
        limits: What it may use.
        usage: What it used.
        failure: What ended it; None while nothing did.
        on_failure: Called once, in the event loop, after the first failure.

    A script's calls arrive in threads of the sandbox; all that counts them may be called there.
    """

    def __init__(self, limits: ProgramLimits) -> None:
        self.limits = limits
        self.usage = ProgramUsage()
        self.failure: Exception | None = None
        self.on_failure: Callable[[], object] | None = None
        self._num_contexts = 0
        self._start_s = time.monotonic()
        self._loop = asyncio.get_running_loop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since admission."""
        return time.monotonic() - self._start_s

    @property
    def decode_left(self) -> int:
        """Tokens that may still be generated."""
        return max(self.limits.decode_tokens - self.usage.num_completion_tokens, 0)

    def fail(self, error: Exception) -> None:
        """Ends the run with an error, unless it has ended."""
        if self.failure is None:
            self.failure = error
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self.on_failure is not None:
            self.on_failure()

    def count_call(self) -> None:
        """One call of what the server gives the script."""
        if self.failure is not None:
            raise RunEnded
        usage = self.usage
        usage.num_host_calls += 1
        if usage.first_call_s is None:
            usage.first_call_s = self.elapsed_s
        self._hold("host_calls", usage.num_host_calls, self.limits.host_calls)

    def count_prefill(self, num_tokens: int) -> None:
        """Tokens of the script's that are computed now."""
        self.usage.num_prompt_tokens += num_tokens
        self._hold("prefill_tokens", self.usage.num_prompt_tokens, self.limits.prefill_tokens)

    def count_decode(self, num_tokens: int) -> None:
        """Tokens that were generated."""
        self.usage.num_completion_tokens += num_tokens
        self._hold("decode_tokens", self.usage.num_completion_tokens, self.limits.decode_tokens)

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
        self._num_contexts += count
        self.usage.num_contexts += count
        self.usage.max_contexts = max(self.usage.max_contexts, self._num_contexts)

    def close_context(self) -> None:
        """One context less."""
        self._num_contexts -= 1

    def _hold(self, limit: str, used: float, allowed: float) -> None:
        if used > allowed:
            self.fail(ScriptLimitExceeded(limit, used, allowed))
            raise RunEnded
