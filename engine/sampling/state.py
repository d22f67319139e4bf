"""What the device remembers of running sequences between steps: newest token, and only where used, counts and history.

Letters: V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.sampling.history import RowPool
from engine.sampling.params import SamplingParams
from engine.sampling.random import stream_key

COUNT_IN_OUTPUT = 2
"""What one output token adds to its count; the lowest bit says that the token is in the prompt."""


def upload(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Copies numbers to a device without waiting for it."""
    host = torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class BadWord:
    """Tokens that must not follow each other: `last` is forbidden where the output ends in `prefix`."""

    prefix: torch.Tensor
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """One sequence as the sampler sees it.

    Attributes:
        params: How its tokens are chosen.
        stream_key: Names its random stream.
        is_greedy: The likeliest token is always taken, whichever parameters say so.
        is_special: Its logits are changed before the choice, its output written down, or log-probabilities reported.
        early_stop_ids: Forbidden before `min_tokens`.
        banned_ids: Always forbidden.
        bad_words: Forbidden sequences of two tokens or more.
        allowed: [ceil(V / 32)] int32 bit mask of the tokens that may be drawn, or None.
        counts_slot: Its row of `SamplerState.counts`, if penalties apply.
        history_slot: Its row of `SamplerState.history`, if penalties or `bad_words` apply.
        history_base: Places in the history before the first output token.
    """

    params: SamplingParams
    stream_key: int
    is_greedy: bool
    is_special: bool
    early_stop_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]
    bad_words: tuple[BadWord, ...]
    allowed: torch.Tensor | None
    counts_slot: int | None
    history_slot: int | None
    history_base: int

    @property
    def is_truncated(self) -> bool:
        """True if a draw is from a part of the vocabulary."""
        return self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0.0

    def num_kept(self, vocab_size: int) -> int:
        """Tokens that `top_k` keeps, 1..vocab_size."""
        return min(self.params.top_k or vocab_size, vocab_size)

    @property
    def repetition(self) -> float:
        """The repetition penalty, within what float32 can divide and multiply by."""
        return min(max(self.params.repetition_penalty, 1e-30), 1e30)

    @property
    def kept_mass(self) -> float:
        """What `top_p` keeps, infinite for all: a sum of all probabilities may round to less than 1."""
        return self.params.top_p if self.params.top_p < 1.0 else math.inf


class SamplerState:
    """What the device remembers of each running sequence, a row each.

    Attributes:
        num_rows: Most sequences at once.
        vocab_size: V.
        device: Where the tensors lie.
        last_tokens: [num_rows] int64, the newest token of each row: feeds the next step without the host.
        counts: Rows [V] int32 of sequences with penalties: `COUNT_IN_OUTPUT` times the occurrences in the output, plus
            1 if in the prompt and the prompt counts.
        history: Rows int64 of token ids: for a repetition penalty the prompt's distinct tokens, then the output.
        version: Changes whenever a row does.
    """

    def __init__(self, *, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.vocab_size = vocab_size
        self.device = device
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.counts = RowPool(vocab_size, torch.int32, device)
        self.history = RowPool(256, torch.int64, device)
        self.version = 0
        self._rows: list[RowState | None] = [None] * num_rows

    def assign(
        self,
        row: int,
        *,
        params: SamplingParams,
        seed: int,
        stream: int,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        eos_token_ids: Sequence[int],
    ) -> None:
        """Fills a row when a sequence enters, or enters again after preemption. Waits for nothing on an accelerator.

        Args:
            row: A row; what it held before is forgotten.
            params: Validated parameters.
            seed: Any 64-bit number.
            stream: Which of a request's sequences.
            prompt_ids: At least one token id.
            output_ids: Tokens drawn so far.
            eos_token_ids: The model's own end ids.
        """
        self.release(row)
        has_penalties = _has_penalties(params)
        words = tuple(word for word in params.bad_words if len(word) > 1)
        seen = sorted(set(prompt_ids)) if params.repetition_penalty != 1.0 else []
        bad_words = tuple(BadWord(self._upload(word[:-1]), word[-1]) for word in words)
        allowed = None if params.allowed_token_ids is None else self._pack_mask(params.allowed_token_ids)
        state = RowState(
            params=params,
            stream_key=stream_key(seed, stream),
            is_greedy=params.is_greedy or params.top_k == 1 or params.top_p == 0.0,
            is_special=has_penalties or _is_special(params),
            early_stop_ids=_early_stop_ids(params, eos_token_ids),
            banned_ids=tuple(word[0] for word in params.bad_words if len(word) == 1),
            bad_words=bad_words,
            allowed=allowed,
            counts_slot=self.counts.take() if has_penalties else None,
            history_slot=self.history.take() if has_penalties or words else None,
            history_base=len(seen),
        )
        self._rows[row] = state
        self.version += 1
        self.last_tokens[row].fill_((output_ids or prompt_ids)[-1])  # item assignment would wait for the device
        if state.history_slot is not None:
            self._write_history(state.history_slot, [*seen, *output_ids])
        if state.counts_slot is not None:
            self._write_counts(state.counts_slot, seen, output_ids)

    def release(self, row: int) -> None:
        """Forgets a row's sequence and takes its memory back; nothing happens if it holds none."""
        state = self._rows[row]
        if state is None:
            return
        self._rows[row] = None
        self.version += 1
        if state.counts_slot is not None:
            self.counts.give_back(state.counts_slot)
        if state.history_slot is not None:
            self.history.give_back(state.history_slot)

    def __getitem__(self, row: int) -> RowState:
        """The sequence of a row.

        Raises:
            KeyError: The row is not assigned.
        """
        state = self._rows[row]
        if state is None:
            raise KeyError(f"sampler row {row} is not assigned")
        return state

    def _write_history(self, slot: int, token_ids: Sequence[int]) -> None:
        self.history.ensure_width(len(token_ids))
        if token_ids:
            self.history.rows[slot, : len(token_ids)] = self._upload(token_ids)

    def _write_counts(self, slot: int, seen: Sequence[int], output_ids: Sequence[int]) -> None:
        counts = Counter({token_id: COUNT_IN_OUTPUT * count for token_id, count in Counter(output_ids).items()})
        counts.update(seen)
        if counts:
            values = upload(list(counts.values()), torch.int32, self.device)
            self.counts.rows[slot].index_copy_(0, self._upload(list(counts)), values)

    def _pack_mask(self, token_ids: Sequence[int]) -> torch.Tensor:
        bits = np.zeros(-(-self.vocab_size // 32) * 32, dtype=bool)
        bits[list(token_ids)] = True
        words = np.packbits(bits, bitorder="little").view("<i4")
        return upload(words.tolist(), torch.int32, self.device)

    def _upload(self, token_ids: Sequence[int]) -> torch.Tensor:
        return upload(token_ids, torch.int64, self.device)


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _is_special(params: SamplingParams) -> bool:
    forbids = params.bad_words or params.min_tokens > 0 or params.allowed_token_ids is not None
    return bool(forbids or params.logit_bias or params.logprobs is not None)


def _early_stop_ids(params: SamplingParams, eos_token_ids: Sequence[int]) -> tuple[int, ...]:
    if params.min_tokens == 0:
        return ()
    own = () if params.ignore_eos else tuple(eos_token_ids)
    return tuple(dict.fromkeys((*own, *params.stop_token_ids)))
