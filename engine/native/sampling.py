"""Choosing tokens in C++: what `engine.sampling` computes with torch, in a few passes over the logits.

Letters: R lanes, V vocabulary, W words of a bit mask, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from engine.native.library import native_module, native_status

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.void]

LANE = np.dtype(
    [
        ("stream_key", np.int64),
        ("position", np.int64),
        ("row", np.int64),
        ("num_output", np.int64),
        ("top_k", np.int64),
        ("counts_slot", np.int64),
        ("history_slot", np.int64),
        ("history_base", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("temperature", np.float32),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("is_greedy", np.int32),
        ("mask", np.int32),
    ]
)
"""One lane's parameters, as `wye::Lane` in `src/sampling.h` explains them."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the tokens of running sequences are remembered in; see `SamplerState`.

    Attributes:
        last_tokens: [num_rows] int64.
        counts: [num_counts, V] int32.
        history: [num_histories, width] int64.
    """

    last_tokens: Longs
    counts: Ints
    history: Longs


class NativeSampling:
    """The compiled functions for one vocabulary. All arrays are C-contiguous and on the host.

    Args:
        module: The extension module.
        vocab_size: V.
        form: One that this processor can run.
        team: Threads to spread rows over, a capsule named "wye.team"; None works in the caller's thread.
    """

    def __init__(self, module: ModuleType, vocab_size: int, form: str, team: object | None = None) -> None:
        self.form = form
        self._choose = module.choose_tokens
        self._edit = module.edit_logits
        self._report = module.report_logprobs
        self._outline = module.outline_rows
        self._vocab_size = vocab_size
        self._team = team

    def choose_tokens(
        self, logits: Floats, lanes: Lanes, masks: Ints, memory: Memory, given: Longs | None = None
    ) -> Longs:
        """Applies masks, chooses a token a lane and remembers it.

        Args:
            logits: [R, V], may be changed. NaN counts as -inf, +inf as a large number.
            lanes: [R] of `LANE`.
            masks: [*, W], bit i of word w allows token 32 * w + i.
            memory: Changed.
            given: [R] token ids, changed: those that lanes have already, whatever their logits are, else -1.

        Returns:
            [R] token ids.

        Raises:
            ValueError: Sizes do not fit, or a lane's parameter is out of range; nothing has changed.
            MemoryError: Nothing is remembered.
        """
        tokens = np.full(len(lanes), -1, np.int64) if given is None else given
        width = memory.history.shape[1]
        self._choose(
            *(self._team, self.form, self._vocab_size, width, logits, lanes, masks),
            *(memory.last_tokens, memory.counts, memory.history, tokens),
        )
        return tokens

    def edit_logits(self, logits: Floats, lanes: Lanes, memory: Memory) -> None:
        """Makes NaN -inf and +inf a large number, then applies penalties.

        Args:
            logits: [R, V], changed.
            lanes: [R] of `LANE`.
            memory: Read.

        Raises:
            ValueError: Sizes do not fit, or a lane's parameter or history is out of range; nothing has changed.
            MemoryError: Nothing has changed.
        """
        width = memory.history.shape[1]
        self._edit(
            *(self._team, self.form, self._vocab_size, width, logits, lanes, NO_MASKS),
            *(memory.last_tokens, memory.counts, memory.history),
        )

    def report_logprobs(self, logits: Floats, targets: Longs, num_top: int) -> tuple[Floats, Longs, Longs, Floats]:
        """Log-probabilities of tokens and of the likeliest.

        Args:
            logits: [R, V]; +inf may be replaced by a large number.
            targets: [R] token ids.
            num_top: K, at most V.

        Returns:
            Log-probability [R] and rank [R] of the targets, ids [R, K] and log-probabilities [R, K] of the likeliest.

        Raises:
            ValueError: Sizes do not fit, or a target is no token id.
            MemoryError: There is too little.
        """
        num_rows = len(targets)
        chosen, rank = np.empty(num_rows, np.float32), np.empty(num_rows, np.int64)
        top_ids, top_logprobs = np.empty((num_rows, num_top), np.int64), np.empty((num_rows, num_top), np.float32)
        arrays = (logits, targets, chosen, rank, top_ids, top_logprobs)
        self._report(self._team, self.form, self._vocab_size, num_top, *arrays)
        return chosen, rank, top_ids, top_logprobs

    def outline_rows(self, logits: Floats, places: Longs, num_top: int) -> tuple[Doubles, Doubles, Longs, Floats]:
        """Likeliest tokens and entropies of some rows.

        Args:
            logits: [R, V]; NaN and +inf may be replaced.
            places: [D] rows, rising.
            num_top: K, at most V.

        Returns:
            Logarithms of the sums of exp(logit) [D], entropies [D], ids [D, K] and log-probabilities [D, K] of the
            likeliest.

        Raises:
            ValueError: Sizes do not fit, or places do not rise or are no rows.
            MemoryError: There is too little.
        """
        num_places = len(places)
        log_totals, entropies = np.empty(num_places, np.float64), np.empty(num_places, np.float64)
        top_ids, top_logprobs = np.empty((num_places, num_top), np.int64), np.empty((num_places, num_top), np.float32)
        arrays = (logits, places, log_totals, entropies, top_ids, top_logprobs)
        self._outline(self._team, self.form, self._vocab_size, num_top, *arrays)
        return log_totals, entropies, top_ids, top_logprobs


NO_MASKS: Ints = np.empty(0, np.int32)
"""For lanes without any."""


def find_native_sampling(
    vocab_size: int, *, form: str | None = None, team: object | None = None
) -> NativeSampling | None:
    """The compiled functions, or None where they cannot run.

    Args:
        vocab_size: V.
        form: Instead of the one that `WYE_NATIVE_FORM` names or that is best.
        team: Threads to spread rows over.

    Raises:
        ModelLoadError: `WYE_NATIVE_FORM` names no form of this processor.
    """
    module, status = native_module(), native_status()
    if module is None or status.form is None:
        return None
    return NativeSampling(module, vocab_size, form or status.form, team)
