"""One of a generation's continuations: engine events in, steps of text out. Pure: it knows no engine and no loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.request import FinishReason as EngineFinish
from engine.request import TokenEvent, TokenLogprob
from engine.text.detokenizer import DecodedToken, IncrementalDetokenizer
from engine.text.tokenizer import Tokenizer
from extensions.output import FinishReason, GenerateOptions, GenerationStep, TokenText
from extensions.stopping import StopMatch, StopMatcher, StopStrings
from extensions.thinking import ThoughtSplitter
from extensions.token_text import describe

_FINISH: dict[EngineFinish, FinishReason] = {
    EngineFinish.STOP: "stop",
    EngineFinish.LENGTH: "length",
    EngineFinish.ABORT: "abort",
}


class Continuation:
    """Text, tokens and stop strings of one sequence.

    A step's text is that of its tokens: text is given in whole tokens, and a character or a possible stop string that
    several tokens make up comes with all of them. A stop string cuts the text at its first character: of the tokens,
    those with at least one visible character are still given in `tokens` (the last may reach beyond the text);
    `token_ids` end with the token that completed the stop string, and so does the count. The end of the sequence cuts
    the text before an unfinished character, whose tokens are given all the same.

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
        self._min_tokens = options.sampling.min_tokens
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special=options.skip_special_tokens,
            revealed_ids=options.revealed_ids,
            prompt_tail=prompt_ids,
        )
        self._matcher = StopMatcher(stops, include_stop=options.include_stop_str)
        # Without stop strings nothing needs to be told from the thinking.
        self._thought = ThoughtSplitter(options.thinking) if options.thinking is not None and stops else None
        self._watch = None if options.until is None else options.until()
        self._is_plain = self._matcher.is_idle and not options.report_tokens and options.until is None
        # Decoded tokens whose step is not due yet, and the engine's reports of them and of those not yet decoded.
        self._held: list[DecodedToken] = []
        self._logprobs: deque[TokenLogprob] = deque()
        self._visible = ""
        self._num_chars_given = 0
        self._num_given = 0
        self.num_tokens = 0
        self.is_done = False

    def feed(self, event: TokenEvent) -> GenerationStep | None:
        """Takes an event of this sequence; returns its news, or None if there is nothing to show yet."""
        if self.is_done:
            return None
        if self._is_plain and event.finish_reason is None and len(event.token_ids) == 1:
            text = self._detokenizer.push_whole(event.token_ids[0])
            if text is not None:
                return self._plain_step(event, text)
        if self._options.report_tokens:
            self._logprobs.extend(event.logprobs)
        match = self._take_tokens(event)
        if match is None and event.finish_reason is not None:
            match = self._end_thought()
        if match is not None:
            return self._stopped(match)
        if event.finish_reason is not None:
            return self._finished(event)
        return self._released()

    def _plain_step(self, event: TokenEvent, text: str) -> GenerationStep:
        """The step of one token that nothing holds back; nine in ten are, so that it takes no detour."""
        self.num_tokens += 1
        self._num_given += 1
        self._num_chars_given += len(text)
        return GenerationStep(index=self._index, text=text, token_ids=(event.token_ids[0],))

    def _take_tokens(self, event: TokenEvent) -> StopMatch | None:
        """Decodes an event's tokens: those before `min_tokens` apart, and the stop token, whose text is not shown."""
        ids = event.token_ids
        num_early = self._min_tokens - 1 - self.num_tokens
        hides_stop = event.stop_token_id is not None and not self._options.include_stop_str
        if num_early <= 0 and not hides_stop:
            return self._take(ids)
        num_shown = len(ids) - hides_stop
        num_early = max(0, min(num_early, num_shown))
        match = self._take(ids[:num_early]) or self._take(ids[num_early:num_shown])
        return match or self._take(ids[num_shown:], hide=True)

    def _take(self, ids: list[int], *, hide: bool = False) -> StopMatch | None:
        self.num_tokens += len(ids)
        piece = self._detokenizer.push(ids, hide=hide)
        self._held += piece.tokens
        end = None if self._watch is None else self._watch(piece.text)
        match = self._search(piece.text[:end])
        if match is None and end is not None:
            match = self._end_thought()
        if match is None and end is not None:
            self._visible += self._matcher.flush()
            num_chars = self._num_chars_given + len(self._visible)
            match = StopMatch(None, num_chars, num_chars)
        return match

    def _search(self, text: str) -> StopMatch | None:
        """Makes more text visible; finds the stop string that ends it, but not in the thinking."""
        if self._thought is not None and not self._thought.is_over:
            split = self._thought.push(text)
            self._visible += split.thought
            self._matcher.skip(len(split.thought))
            text = split.answer
        text, match = self._matcher.push(text, active=self.num_tokens >= self._min_tokens)
        self._visible += text
        return match

    def _end_thought(self) -> StopMatch | None:
        """Searches what was held back as a possible beginning of thinking; no text follows it."""
        if self._thought is None or not self._thought.is_holding:
            return None
        split, self._thought = self._thought.flush(), None
        self._visible += split.thought
        self._matcher.skip(len(split.thought))
        return self._search(split.answer)

    @property
    def _holds_thought(self) -> bool:
        return self._thought is not None and self._thought.is_holding

    def _released(self) -> GenerationStep | None:
        """Whatever may be shown already, up to the last border of text that no token crosses."""
        if not self._held:
            return None
        if not (self._matcher.is_holding or self._detokenizer.waiting or self._holds_thought):
            counted, self._held = self._held, []
            return self._step(len(self._visible), counted, len(counted))
        num_visible = self._num_chars_given + len(self._visible)
        num_tokens, border, end = 0, self._num_chars_given, 0
        starts = [token.start for token in self._held] + [self._detokenizer.first_waiting]
        for at, token in enumerate(self._held, start=1):
            end = max(end, token.end)
            if end > num_visible:
                break
            if starts[at] >= end:
                num_tokens, border = at, max(border, end)
        if num_tokens == 0:
            return None
        counted = self._held[:num_tokens]
        del self._held[:num_tokens]
        return self._step(border - self._num_chars_given, counted, num_tokens)

    def _stopped(self, match: StopMatch) -> GenerationStep:
        counted = [token for token in (*self._held, *self._detokenizer.waiting) if token.start < match.end]
        self.num_tokens = self._num_given + len(counted)
        num_visible = self._num_chars_given + len(self._visible)
        num_shown = sum(token.start < num_visible for token in counted)
        return self._last_step(counted, num_shown, "stop", match.stop)

    def _finished(self, event: TokenEvent) -> GenerationStep:
        assert event.finish_reason is not None
        self._visible += self._matcher.flush()
        counted = [*self._held, *self._detokenizer.waiting]
        stop_id = event.stop_token_id
        # The model's own end ids are no news; an id that the caller named is.
        reason = stop_id if stop_id in self._options.sampling.stop_token_ids else None
        return self._last_step(counted, len(counted), _FINISH[event.finish_reason], reason)

    def _last_step(
        self,
        counted: list[DecodedToken],
        num_shown: int,
        finish_reason: FinishReason,
        stop_reason: str | int | None,
    ) -> GenerationStep:
        self._held.clear()
        self.is_done = True
        return self._step(len(self._visible), counted, num_shown, finish_reason, stop_reason)

    def _step(
        self,
        num_chars: int,
        counted: list[DecodedToken],
        num_shown: int,
        finish_reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> GenerationStep:
        """A step of the next `num_chars` characters and of `counted`, the first `num_shown` of which can be seen."""
        text, self._visible = self._visible[:num_chars], self._visible[num_chars:]
        self._num_chars_given += num_chars
        self._num_given += len(counted)
        return GenerationStep(
            index=self._index,
            text=text,
            tokens=self._described(counted, num_shown) if self._options.report_tokens else (),
            token_ids=tuple([token.token_id for token in counted]),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _described(self, counted: Sequence[DecodedToken], num_shown: int) -> tuple[TokenText, ...]:
        reports = [self._logprobs.popleft() if self._logprobs else None for _ in counted]
        return tuple(
            describe(self._tokenizer, token.token_id, token.data, report)
            for token, report in zip(counted[:num_shown], reports, strict=False)
            if not token.is_hidden
        )
