"""Plain numbers about a running engine; whoever exports metrics reads them."""

from __future__ import annotations

import msgspec


class AccountCharge(msgspec.Struct, frozen=True, array_like=True):
    """What KV one account has held.

    Attributes:
        account: The label that requests and contexts brought.
        total_kib_ms: KiB times milliseconds since the engine process began; only grows.
        level_kib: What it pays for now.
    """

    account: str
    total_kib_ms: int
    level_kib: int


class EngineStats(msgspec.Struct, kw_only=True):
    """A snapshot. Totals only grow within one life of the engine.

    Attributes:
        num_running: Sequences with KV on the device.
        num_waiting: Sequences that wait for admission.
        num_pages: Pages in the pool.
        num_used_pages: Pages that some live sequence holds.
        num_cached_pages: Pages that only the prefix cache holds (evictable).
        num_steps: Steps run.
        num_prefill_tokens: Prompt tokens computed (cache hits not counted).
        num_decode_tokens: Output tokens.
        num_forced_tokens: Those among them that were not drawn, because a constraint allowed nothing else.
        num_drafted_tokens: Tokens guessed by drafters.
        num_accepted_tokens: Those among them that were right.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
        num_prompt_tokens: Prompt tokens of admitted requests, cached or not.
        num_preemptions: Sequences that gave their pages back and waited again.
        num_contexts: Contexts held.
        num_leases: Those of them that somebody wishes to keep.
        num_revoked: Leases that ended before their holders ended them.
        num_demoted: Contexts whose pages others needed.
        num_host_pages: Pages of host memory that hold KV.
        num_saved_pages: Pages copied to host memory.
        num_restored_pages: Pages copied back from there.
        overhead_kib_ms: What idle pages of the prefix cache came to, in KiB times milliseconds; charged to nobody.
        num_finished: Sequences ended, by finish reason.
        step_ms: Wall time of the last step.
        num_late_kernels: Kernels that the device loaded while it served, which some step waited for.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_pages: int = 0
    num_used_pages: int = 0
    num_cached_pages: int = 0
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_forced_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    num_contexts: int = 0
    num_leases: int = 0
    num_revoked: int = 0
    num_demoted: int = 0
    num_host_pages: int = 0
    num_saved_pages: int = 0
    num_restored_pages: int = 0
    overhead_kib_ms: int = 0
    num_finished: dict[str, int] = {}
    step_ms: float = 0.0
    num_late_kernels: int = 0
