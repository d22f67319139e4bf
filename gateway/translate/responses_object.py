"""The response object: every field, every time, as typed clients demand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from extensions.output import Usage
from gateway.errors import ErrorReply
from gateway.schemas.responses import ResponseRequest
from gateway.translate.responses_input import tools_shown

Body = dict[str, Any]


def new_response(
    response_id: str, body: ResponseRequest, *, model: str, is_stored: bool, defaults: Mapping[str, float]
) -> Body:
    """A response of which nothing is there yet.

    Args:
        response_id: Its id.
        body: What was asked for.
        model: The name it is answered with.
        is_stored: Whether it can be retrieved.
        defaults: Values of `temperature` and `top_p` where the client gave none.
    """
    wanted = body.text.format
    shown_format: Body = {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)
    if shown_format["type"] == "json_schema":
        shown_format = {"description": None, "strict": None, **shown_format}
    choice = body.tool_choice
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": body.background,
        "completed_at": None,
        "conversation": None if body.conversation is None else {"id": body.conversation.id},
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": is_stored,
        "temperature": defaults["temperature"] if body.temperature is None else body.temperature,
        "text": {"format": shown_format, "verbosity": body.text.verbosity or "medium"},
        "tool_choice": "auto" if choice is None else choice,
        "tools": tools_shown(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": defaults["top_p"] if body.top_p is None else body.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }


def usage_shown(usage: Usage) -> Body:
    """Token counts, by the names of this API."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }


def failure_shown(reply: ErrorReply) -> Body:
    """The `error` of a response that failed."""
    error = reply.body["error"]
    # Typed clients know few codes; the message tells the rest.
    return {"code": "server_error", "message": error["message"]}


def is_over(response: Mapping[str, Any]) -> bool:
    """True once a response will not change any more."""
    return response["status"] not in ("queued", "in_progress")
