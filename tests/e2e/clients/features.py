"""The rows of the matrix."""

from __future__ import annotations

from collections.abc import Mapping

FEATURES: Mapping[str, str] = {
    "chat": "chat",
    "stream": "streamed chat",
    "stream-usage": "streamed chat with usage",
    "async": "asynchronous calls, side by side",
    "history": "instructions and earlier turns",
    "choices": "several choices (`n`)",
    "logprobs": "log-probabilities",
    "thinking": "thinking apart from the answer",
    "tools": "call of a tool, its result, the answer",
    "tools-stream": "the same, streamed",
    "parallel-tools": "several calls in one answer",
    "forced-tool": "a call that is demanded",
    "structured": "structured output, parsed",
    "structured-stream": "structured output, streamed",
    "completions": "text completions, whole and streamed",
    "embeddings": "embeddings",
    "responses": "Responses API",
    "responses-stream": "Responses API, streamed",
    "responses-tools": "Responses API, call of a tool",
    "responses-state": "`previous_response_id`",
    "batches": "files and batches",
    "models": "list of models",
    "bad-request": "400 with the field at fault",
    "too-long": "400 of a prompt that is too long",
    "wrong-key": "401",
    "unknown-model": "404 of a model",
    "retries": "tries again after 503 and `Retry-After`",
    "server-error": "500, not tried again",
    "broken-stream": "a stream that fails raises",
    "timeout": "a timeout frees the engine",
    "abort": "a stream left early frees the engine",
    "command": "command line",
    "real-chat": "chat with SmolLM2",
    "real-stream": "streamed chat with SmolLM2",
    "snippet": "first lines, as below, with SmolLM2",
}
"""Features by name, with the words of the table."""

NEEDS_MODEL = frozenset({"real-chat", "real-stream", "snippet"})
"""Run against the server of the real model."""
