"""What a sequence's callers are told."""

from __future__ import annotations

from engine.request import ErrorReport, FinishReason, TokenEvent
from engine.sequence import Sequence


def make_event(
    sequence: Sequence,
    token_ids: list[int],
    *,
    finish_reason: FinishReason | None = None,
    error: ErrorReport | None = None,
) -> TokenEvent:
    """News of a sequence; the first also says what was known of its prompt."""
    event = TokenEvent(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=token_ids,
        finish_reason=finish_reason,
        error=error,
        kv_kib_ms=sequence.kib_ms,
    )
    if not sequence.reported:
        event.num_cached_tokens = sequence.num_cached
        if sequence.wants_prompt_logprobs:
            event.prompt_logprobs = sequence.prompt_logprobs
        sequence.reported = True
    return event
