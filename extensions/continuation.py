"""One of a generation's continuations: engine events in, steps of text out. Pure: it knows no engine and no loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from engine.request import FinishReason as EngineFinish
from engine.request import TokenEvent, TokenLogprob
from engine.text.detokenizer import DecodedToken, IncrementalDetokenizer, Piece
from engine.text.tokenizer import Tokenizer
from extensions.output import FinishReason, GenerateOptions, GenerationStep
from extensions.stopping import StopMatch, StopMatcher, StopStrings
from extensions.token_text import describe

_FINISH: dict[EngineFinish, FinishReason] = {
    EngineFinish.STOP: "stop",
    EngineFinish.LENGTH: "length",
    EngineFinish.ABORT: "abort",
}


class _Entry(NamedTuple):
    """A token whose text is decoded, with the engine's report of it."""

    token: DecodedToken
    logprob: TokenLogprob | None


class Continuation:
    """Text, tokens and stop strings of one sequence.

    A step's text is that of its tokens: text is given in whole tokens, and a character or a possible stop string that
    several tokens make up comes with all of them. A stop string cuts the text at its first character: of the tokens,
    those with at least one visible character are still given in `tokens` (the last may reach beyond the text);
    `token_ids` end with the token that completed the stop string, and so does the count.

    Attributes:
        num_tokens: Output tokens counted so far.
        is_done: Its last step has been returned.
    """

    def __init__(
        self, index: int, tokenizer: Tokenizer, prompt_ids: Sequence[int], options: GenerateOptions, stops: StopStrings
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._options = options
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special=options.skip_special_tokens, prompt_tail=prompt_ids
        )
        self._matcher = StopMatcher(stops, include_stop=options.include_stop_str)
        self._logprobs: deque[TokenLogprob] = deque()
        self._held: deque[_Entry] = deque()
        self._visible = ""
        self._num_chars_given = 0
        self._num_given = 0
        self.num_tokens = 0
        self.is_done = False

    def feed(self, event: TokenEvent) -> GenerationStep | None:
        """Takes an event of this sequence; returns its news, or None if there is nothing to show yet."""
        if self.is_done:
            return None
        self._logprobs.extend(event.logprobs)
        text, match = self._take_tokens(event)
        if event.finish_reason is not None and match is None:
            more, match = self._take(self._detokenizer.flush(), self._can_stop(self.num_tokens))
            text += more if match is not None else more + self._matcher.flush()
        self._visible += text
        if match is not None:
            return self._stopped(match)
        if event.finish_reason is not None:
            return self._finished(event)
        return self._released()

    def _take_tokens(self, event: TokenEvent) -> tuple[str, StopMatch | None]:
        """Decodes an event's tokens; those before `min_tokens` apart, and the stop token, whose text is not shown."""
        ids = event.token_ids
        num_shown = len(ids)
        if event.stop_token_id is not None and not self._options.include_stop_str:
            num_shown -= 1
        num_early = min(num_shown, max(0, self._options.sampling.min_tokens - 1 - self.num_tokens))
        text = ""
        for part, hide in ((ids[:num_early], False), (ids[num_early:num_shown], False), (ids[num_shown:], True)):
            if part:
                self.num_tokens += len(part)
                more, match = self._take(self._detokenizer.push(part, hide=hide), self._can_stop(self.num_tokens))
                text += more
                if match is not None:
                    return text, match
        return text, None

    def _take(self, piece: Piece, can_stop: bool) -> tuple[str, StopMatch | None]:
        self._hold(piece.tokens)
        return self._matcher.push(piece.text, active=can_stop)

    def _can_stop(self, num_tokens: int) -> bool:
        return num_tokens >= self._options.sampling.min_tokens

    def _hold(self, tokens: Sequence[DecodedToken]) -> None:
        for token in tokens:
            self._held.append(_Entry(token, self._logprobs.popleft() if self._logprobs else None))

    def _released(self) -> GenerationStep | None:
        """Whatever may be shown already, up to the last border of text that no token crosses."""
        num_visible = self._num_chars_given + len(self._visible)
        if not self._held or self._held[0].token.end > num_visible:
            return None
        num_entries, border, end = 0, self._num_chars_given, 0
        starts = [entry.token.start for entry in self._held] + [self._detokenizer.first_waiting]
        for at, entry in enumerate(self._held, start=1):
            end = max(end, entry.token.end)
            if end > num_visible:
                break
            if starts[at] >= end:
                num_entries, border = at, max(border, end)
        if num_entries == 0:
            return None
        entries = [self._held.popleft() for _ in range(num_entries)]
        return self._step(border - self._num_chars_given, entries, entries)

    def _stopped(self, match: StopMatch) -> GenerationStep:
        self._hold(self._detokenizer.flush().tokens)
        num_visible = self._num_chars_given + len(self._visible)
        counted = list(takewhile(lambda entry: entry.token.start < match.end, self._held))
        shown = [entry for entry in counted if entry.token.start < num_visible]
        self.num_tokens = self._num_given + len(counted)
        return self._last_step(shown, counted, "stop", match.stop)

    def _finished(self, event: TokenEvent) -> GenerationStep:
        assert event.finish_reason is not None
        entries = list(self._held)
        stop_id = event.stop_token_id
        # The model's own end ids are no news; an id that the caller named is.
        reason = stop_id if stop_id in self._options.sampling.stop_token_ids else None
        return self._last_step(entries, entries, _FINISH[event.finish_reason], reason)

    def _last_step(
        self,
        shown: Sequence[_Entry],
        counted: Sequence[_Entry],
        finish_reason: FinishReason,
        stop_reason: str | int | None,
    ) -> GenerationStep:
        self._held.clear()
        self.is_done = True
        return self._step(len(self._visible), shown, counted, finish_reason, stop_reason)

    def _step(
        self,
        num_chars: int,
        shown: Sequence[_Entry],
        counted: Sequence[_Entry],
        finish_reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> GenerationStep:
        text, self._visible = self._visible[:num_chars], self._visible[num_chars:]
        self._num_chars_given += num_chars
        self._num_given += len(counted)
        return GenerationStep(
            index=self._index,
            text=text,
            tokens=tuple(
                describe(self._tokenizer, entry.token.token_id, entry.token.data, entry.logprob)
                for entry in shown
                if not entry.token.is_hidden
            ),
            token_ids=tuple(entry.token.token_id for entry in counted),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
