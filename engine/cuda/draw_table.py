"""What kernels know of running sequences: a row of parameters each, at an address that never changes.

A captured graph reads the table anew at every replay, so it never needs to be captured again: what may move (counts and
history, when their pools grow) stands in the table as an address.

Letters: R rows of device state, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.cuda.draw_scratch import DrawScratch
from engine.cuda.kernels import row_fields as fields
from engine.cuda.kernels.draw_config import DrawConfig
from engine.sampling.state import RowState, SamplerState

_WORDS: int = fields.WORDS.value


@dataclass(frozen=True, slots=True)
class _Written:
    """What a row of the table was made of; kept, as addresses in the row point into it.

    Attributes:
        state: The sequence.
        entries: Its biases, bans and bad words on the device, or None.
        pools: Where counts and history lay.
    """

    state: RowState
    entries: torch.Tensor | None
    pools: tuple[int, int]


class DrawTable:
    """Parameters of a state's rows, on its device.

    All work is enqueued on the current stream, which has to be the one that draws.

    Args:
        state: Whose rows.
        max_lanes: Most lanes of a draw, padding included; by default what any width of the state's rows is padded to.
        config: How all draws are cut, instead of what is fast.

    Attributes:
        state: The same.
        config: The same.
        scratch: For one draw at a time.
        words: [R, WORDS] int64, see `engine.cuda.kernels.row_fields`.
        numbers: The same memory as float64.
    """

    def __init__(self, state: SamplerState, *, max_lanes: int | None = None, config: DrawConfig | None = None) -> None:
        self.state = state
        self.config = config
        max_lanes = max_lanes or max(64, 1 << (state.num_rows - 1).bit_length())
        self.scratch = DrawScratch(max_lanes, state.vocab_size, state.device, config=config)
        self.words = torch.zeros((state.num_rows, _WORDS), dtype=torch.int64, device=state.device)
        self.numbers = self.words.view(torch.float64)
        self._written: list[_Written | None] = [None] * state.num_rows
        self._current: tuple[int, tuple[int, ...], tuple[int, int]] | None = None

    def sync(self, rows: Sequence[int], num_outputs: Sequence[int]) -> None:
        """Brings rows up to date before a draw; to be called before each, also before a replay.

        Uploads what was assigned or has moved since, at once; waits for nothing and costs nothing otherwise.

        Args:
            rows: Those that draw.
            num_outputs: Output tokens of each so far.

        Raises:
            KeyError: A row is not assigned.
        """
        self._make_room(rows, num_outputs)
        current = (self.state.version, tuple(rows), self._pools())
        if current == self._current:
            return
        stale = [row for row in rows if not self._is_written(row)]
        if stale:
            self._write(stale)
        self._current = current

    def is_plain(self, rows: Sequence[int]) -> bool:
        """True if none of the rows changes its logits, truncates or writes its output down.

        Raises:
            KeyError: A row is not assigned.
        """
        return not any(_is_edited(row) or _is_truncated(row) for row in map(self.state.__getitem__, rows))

    def _make_room(self, rows: Sequence[int], num_outputs: Sequence[int]) -> None:
        history = self.state.history
        for row, num_output in zip(rows, num_outputs, strict=True):
            one = self.state[row]
            if one.history_slot is not None:
                history.ensure_width(one.history_base + num_output + 1)

    def _pools(self) -> tuple[int, int]:
        return self.state.counts.rows.data_ptr(), self.state.history.rows.data_ptr()

    def _is_written(self, row: int) -> bool:
        written, now = self._written[row], self.state[row]
        if written is None or written.state is not now:
            return False
        return now.history_slot is None or written.pools == self._pools()

    def _write(self, rows: Sequence[int]) -> None:
        values = np.zeros((len(rows), 1 + _WORDS), np.int64)
        for place, row in enumerate(rows):
            values[place, 0] = row
            self._written[row] = self._fill(values[place, 1:], self.state[row])
        uploaded = self._upload(values)
        self.words.index_copy_(0, uploaded[:, 0], uploaded[:, 1:])

    def _fill(self, words: npt.NDArray[np.int64], row: RowState) -> _Written:
        params, numbers = row.params, words.view(np.float64)
        entries = _entries_of(row)
        on_device = self._upload(entries) if len(entries) else None
        words[fields.STREAM_KEY.value] = row.stream_key
        words[fields.IS_EDITED.value] = _is_edited(row)
        words[fields.IS_TRUNCATED.value] = _is_truncated(row)
        self._fill_addresses(words, row)
        words[fields.ENTRIES.value] = 0 if on_device is None else on_device.data_ptr()
        words[fields.NUM_BIASES.value] = len(params.logit_bias)
        words[fields.NUM_BANS.value] = len(row.banned_ids)
        words[fields.NUM_EARLY.value] = len(row.early_stop_ids)
        words[fields.MIN_TOKENS.value] = params.min_tokens
        words[fields.NUM_BAD_WORDS.value] = len(row.bad_words)
        words[fields.TOP_K.value] = row.num_kept(self.state.vocab_size)
        numbers[fields.TEMPERATURE.value] = 0.0 if row.is_greedy else np.float32(params.temperature)
        numbers[fields.TOP_P.value] = row.kept_mass
        numbers[fields.MIN_P.value] = params.min_p
        numbers[fields.REPETITION.value] = row.repetition
        numbers[fields.PRESENCE.value] = params.presence_penalty
        numbers[fields.FREQUENCY.value] = params.frequency_penalty
        return _Written(row, on_device, self._pools())

    def _fill_addresses(self, words: npt.NDArray[np.int64], row: RowState) -> None:
        counts, history = self.state.counts.rows, self.state.history.rows
        if row.counts_slot is not None:
            words[fields.COUNTS.value] = counts.data_ptr() + row.counts_slot * counts.stride(0) * counts.element_size()
        if row.history_slot is not None:
            offset = row.history_slot * history.stride(0) * history.element_size()
            words[fields.HISTORY.value] = history.data_ptr() + offset
            words[fields.HISTORY_BASE.value] = row.history_base
            words[fields.HISTORY_WIDTH.value] = history.shape[1]
        if row.allowed is not None:
            words[fields.ALLOWED.value] = row.allowed.data_ptr()

    def _upload(self, values: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> torch.Tensor:
        host = torch.from_numpy(values)
        if self.words.device.type == "cpu":
            return host
        return host.pin_memory().to(self.words.device, non_blocking=True)


def _is_edited(row: RowState) -> bool:
    """True if parameters change logits, or a token is written down."""
    lists = (row.params.logit_bias, row.banned_ids, row.early_stop_ids, row.bad_words)
    return row.history_slot is not None or row.allowed is not None or any(lists)


def _is_truncated(row: RowState) -> bool:
    return row.is_truncated and not row.is_greedy


def _entries_of(row: RowState) -> npt.NDArray[np.int32]:
    """See `row_fields.ENTRIES`."""
    bias = row.params.logit_bias
    values = np.array(list(bias.values()), np.float32).view(np.int32)
    words = [[len(word), last, *word] for *word, last in row.params.bad_words if word]
    lists = [*(list(bias), values, row.banned_ids, row.early_stop_ids), *words]
    return np.concatenate([np.asarray(one, np.int32) for one in lists])
