"""What a generation is told and what it yields: text with its tokens, never half a character or half a stop string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from engine.request import AttentionSpec, ConstraintSpec, DrafterSpec, ProgramSpec
from engine.sampling.params import SamplingParams
from extensions.thinking import Markers

if TYPE_CHECKING:
    from extensions.held_stream import HeldStream

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateOptions:
    """How to continue a context.

    Attributes:
        sampling: What the engine decides per token.
        n: Independent continuations.
        stop: Strings that end a continuation; matched over token borders, cut from the text.
        include_stop_str: Keep the matched stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        report_tokens: Give each step's `tokens`; without them a step costs less.
        prompt_logprobs: None, or how many alternatives to report for each prompt token.
        priority: Lower enters sooner.
        constraint: What the text of every continuation must be.
        revealed_ids: Special tokens that are shown even so.
        thinking: Markers of the thinking that a continuation may begin with, in which no stop string counts.
        program: Draws the tokens instead of the sampler.
        drafter: Guesses tokens that are verified together; nothing of the text depends on it.
        on_wanted: Told when the engine waits for a guess of the caller's: where to give it, and how many tokens it may
            have. Only for live contexts.
        attention: Tell what the last token of the history, or rows of a pass, attend to.
        adapter: Name of the adapter that continues it; empty for the model alone. A live context has its own.
        until: Makes a watch for each continuation, which is told of its text as it comes and says where in that the
            continuation is to end, or None.
    """

    sampling: SamplingParams
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    skip_special_tokens: bool = True
    report_tokens: bool = True
    prompt_logprobs: int | None = None
    priority: int = 0
    constraint: ConstraintSpec | None = None
    revealed_ids: frozenset[int] = frozenset()
    thinking: Markers | None = None
    program: ProgramSpec | None = None
    adapter: str = ""
    drafter: DrafterSpec | None = None
    on_wanted: Callable[[HeldStream, int], None] | None = None
    until: Callable[[], Callable[[str], int | None]] | None = None
    attention: AttentionSpec | None = None


class TokenAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """One likely token at a position.

    Attributes:
        token_id: Its id.
        text: Its text alone; U+FFFD where its bytes are no whole character.
        data: Its true bytes.
        logprob: Natural logarithm of its probability, finite.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float


class TokenText(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a text.

    Attributes:
        token_id: Its id.
        text: Its text alone; U+FFFD where its bytes are no whole character.
        data: Its true bytes; joined over a text they give the text's bytes, and those of a character that was not
            finished.
        logprob: Finite, or None when not asked for (or for the first prompt token).
        top: Likeliest tokens at its place, best first.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float | None = None
    top: tuple[TokenAlternative, ...] = ()


class GenerationStep(msgspec.Struct, frozen=True, kw_only=True):
    """News of one continuation.

    Attributes:
        index: Which of the `n`.
        text: New text, whole characters only; may be empty. A character that is unfinished at the end of the
            continuation is left out; U+FFFD stands only for bytes inside the text that no later ones could mend.
        tokens: The tokens whose text completes within `text` (held-back tokens come with their text), unless
            `report_tokens` is off; on the last step also those of an unfinished character. Tokens cut off with a stop
            string and special tokens left out of the text do not appear.
        token_ids: Every new token id the engine produced that belongs to this step, the stop token included.
        finish_reason: Set on the last step of this continuation.
        stop_reason: The stop string or the stop token id that ended it (None for the model's own end id).
        prompt_tokens: On the first step, when `prompt_logprobs` was asked for.
    """

    index: int
    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_tokens: tuple[TokenText, ...] | None = None


class Usage(msgspec.Struct, kw_only=True):
    """Tokens counted so far.

    Attributes:
        num_prompt_tokens: Once, whatever `n` is.
        num_completion_tokens: Over all continuations; a stop token counts, tokens past a stop string do not.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
        per_choice: Completion tokens of each continuation.
        num_reasoning_tokens: Those of the completion tokens that are thinking, where somebody told them apart.
        num_drafted_tokens: Tokens that were guessed ahead.
        num_accepted_tokens: Those of them that were right.
        kv_kib_ms: What was charged for the KV of it, in KiB times milliseconds. On a live context also for the time
            since the generation before.
    """

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    per_choice: dict[int, int] = {}
    num_reasoning_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    kv_kib_ms: int = 0
