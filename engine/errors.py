"""Errors of the engine.

    EngineError
    ├── InvalidRequest           the caller's fault; trying the same again cannot help; nothing was started
    │   ├── ContextTooLong       prompt, or prompt plus asked tokens, exceed what this engine can ever hold
    │   ├── UnknownAdapter       no such adapter is loaded
    │   ├── ConstraintBroken     the output cannot go on within its language; the tokens before are valid
    │   ├── UnsupportedReadout   this engine cannot return what was asked
    │   └── ProgramFailed        a device program drew what may not come; the tokens before it are valid
    ├── ResourceExhausted        nobody's fault; trying later can help; nothing was started
    │   ├── OutOfPages           the KV pool has no page left for this
    │   ├── QueueFull            too many requests wait already
    │   └── QuotaExceeded        the account was charged for as much KV as it may be
    ├── LeaseLost                what was kept for a context is gone, and its holder wanted to be told so
    ├── SequenceNotFound         the handle names nothing (any more)
    ├── ModelLoadError           a model file is missing, damaged or of an unknown kind; the process cannot start
    └── EngineStopped            the engine is gone or stopping; in-flight work is lost, a retry may reach a new one

Errors cross the process boundary as `ErrorReport` (see `engine.request`) and are rebuilt from their fields.
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything the engine raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(EngineError):
    """The request can never be served as it stands.

    Attributes:
        param: The field at fault, in the engine's own naming (`prompt_ids`, `temperature`, `logit_bias`...), or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """Prompt and asked tokens do not fit.

    Attributes:
        limit_tokens: What fits at most, prompt and output together.
        num_prompt_tokens: Length of the prompt.
        max_tokens: Output tokens asked for, or None if none were named.
    """

    def __init__(self, limit_tokens: int, num_prompt_tokens: int, max_tokens: int | None) -> None:
        asked = f"{num_prompt_tokens} in the prompt"
        if max_tokens is not None:
            asked = f"{num_prompt_tokens + max_tokens} ({asked}, {max_tokens} for the completion)"
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, you requested {asked}. "
            "Please reduce the length of the prompt or of the completion.",
            "prompt_ids",
        )
        self.limit_tokens = limit_tokens
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens


class UnknownAdapter(InvalidRequest):
    """No adapter of that name is loaded."""


class ConstraintBroken(InvalidRequest):
    """A sequence cannot go on within its language: nothing it may draw belongs to it, or a limit was reached."""


class UnsupportedReadout(InvalidRequest):
    """The engine cannot return what was asked."""


class ProgramFailed(InvalidRequest):
    """A device program returned no token, or one that a constraint or a ban forbids."""

    def __init__(self) -> None:
        super().__init__("the device program returned a token that may not come here, or none", "extension.sampler")


class ResourceExhausted(EngineError):
    """No room now; a later try can succeed."""


class OutOfPages(ResourceExhausted):
    """The KV pool has too few free pages.

    Attributes:
        needed_pages: Pages the operation needs.
        free_pages: Pages free at that moment, evictable cache included.
    """

    def __init__(self, needed_pages: int, free_pages: int) -> None:
        super().__init__(f"needs {needed_pages} KV pages, {free_pages} are free")
        self.needed_pages = needed_pages
        self.free_pages = free_pages


class QueueFull(ResourceExhausted):
    """Too many requests wait already.

    Attributes:
        num_waiting: Requests waiting now.
    """

    def __init__(self, num_waiting: int) -> None:
        super().__init__(f"{num_waiting} requests wait already; try again later")
        self.num_waiting = num_waiting


class QuotaExceeded(ResourceExhausted):
    """An account has been charged for as much KV as it may be.

    Attributes:
        account: Whose quota it is.
    """

    def __init__(self, account: str) -> None:
        super().__init__("the KV quota of the account is used up")
        self.account = account


class LeaseLost(EngineError):
    """A context's lease was revoked, and its KV given up; its holder wanted the next computation to fail then.

    Attributes:
        reason: Why it was revoked.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the lease was revoked ({reason}), and the KV that it kept is gone")
        self.reason = reason


class SequenceNotFound(EngineError):
    """The handle names nothing, or no longer does."""


class ModelLoadError(EngineError):
    """A model cannot be loaded; the message names the file, and the tensor or key at fault."""


class EngineStopped(EngineError):
    """The engine process ended or is stopping."""
