"""Token counts to the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from extensions.output import Usage


def usage_body(usage: Usage) -> dict[str, Any]:
    """The `usage` object of an answer."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.num_reasoning_tokens,
            "accepted_prediction_tokens": usage.num_accepted_tokens,
            "rejected_prediction_tokens": usage.num_drafted_tokens - usage.num_accepted_tokens,
        },
    }


_USAGE_JSON = (
    b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},'
    b'"completion_tokens_details":{"reasoning_tokens":%d,"accepted_prediction_tokens":%d,'
    b'"rejected_prediction_tokens":%d}}'
)


def usage_json(usage: Usage) -> bytes:
    """The same as JSON, for streams that tell it with every token."""
    return _USAGE_JSON % (
        usage.num_prompt_tokens,
        usage.num_completion_tokens,
        usage.num_prompt_tokens + usage.num_completion_tokens,
        usage.num_cached_tokens,
        usage.num_reasoning_tokens,
        usage.num_accepted_tokens,
        usage.num_drafted_tokens - usage.num_accepted_tokens,
    )


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum over the prompts of one request."""
    total = Usage()
    for part in parts:
        total.num_prompt_tokens += part.num_prompt_tokens
        total.num_completion_tokens += part.num_completion_tokens
        total.num_cached_tokens += part.num_cached_tokens
        total.kv_kib_ms += part.kv_kib_ms
        total.num_drafted_tokens += part.num_drafted_tokens
        total.num_accepted_tokens += part.num_accepted_tokens
    return total
