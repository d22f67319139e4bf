"""A sampler filled from situations in every form there is here, and Hypothesis strategies for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

from engine.native.library import native_status
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import TORCH, LaneMasks, SampledTokens, SampleLane, Sampler
from engine.sampling.state import SamplerState
from tests.engine.sampling.reference import Floats32, Situation

CPU = torch.device("cpu")
V = 150
FORMS = (TORCH, *(form for form in native_status().forms if form in ("avx512", "avx2")))
"""Forms of a sampler on this machine; the rest choose as avx512 does."""


class Bench:
    """A sampler whose rows are filled from situations.

    Attributes:
        default_form: Of the samplers of benches made from now on.
    """

    default_form: ClassVar[str] = TORCH

    def __init__(
        self,
        situations: Sequence[Situation],
        *,
        vocab_size: int = V,
        num_rows: int | None = None,
        form: str | None = None,
    ) -> None:
        self.situations = situations
        self.state = SamplerState(num_rows=num_rows or len(situations), vocab_size=vocab_size, device=CPU)
        self.sampler = Sampler(self.state, form=form or self.default_form)
        for row in range(len(situations)):
            self.assign(row)

    def assign(self, row: int) -> None:
        now = self.situations[row]
        self.state.assign(
            row,
            params=now.params,
            seed=now.seed,
            stream=now.stream,
            prompt_ids=now.prompt_ids,
            output_ids=now.output_ids,
            eos_token_ids=now.eos_token_ids,
        )

    def sample(self, logits: Floats32, rows: Sequence[int] | None = None) -> SampledTokens:
        """Draws for rows in the given order; `logits` has a line for each."""
        rows = range(len(self.situations)) if rows is None else rows
        lanes = [self.lane(row) for row in rows]
        return self.sampler.sample(torch.from_numpy(logits.copy()), lanes, self.masks(rows))

    def lane(self, row: int) -> SampleLane:
        now = self.situations[row]
        return SampleLane(row=row, position=now.position, num_output=len(now.output_ids))

    def masks(self, rows: Sequence[int]) -> LaneMasks | None:
        """Masks of the rows that have one."""
        allowed = {place: self.situations[row].allowed_by_mask for place, row in enumerate(rows)}
        masks = {place: bit_mask(ids, self.state.vocab_size) for place, ids in allowed.items() if ids is not None}
        return LaneMasks(list(masks), np.stack(list(masks.values()))) if masks else None

    def step(self, logits: Floats32, rows: Sequence[int] | None = None) -> list[int]:
        """Draws and appends the tokens to the situations, as the host would, late."""
        rows = range(len(self.situations)) if rows is None else rows
        tokens: list[int] = self.sample(logits, rows).token_ids.tolist()
        for row, token in zip(rows, tokens, strict=True):
            self.situations[row].output_ids.append(token)
        return tokens


def bit_mask(allowed: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    words = [0] * -(-vocab_size // 32)
    for token_id in allowed:
        words[token_id // 32] |= 1 << token_id % 32
    return np.array(words, dtype=np.uint32).view(np.int32)


def logits_for(seed: int, num_lanes: int, *, rounded: bool = False) -> Floats32:
    values = np.random.default_rng(seed).standard_normal((num_lanes, V)) * 3
    return (np.round(values) if rounded else values).astype(np.float32)


ids = st.integers(0, V - 1)
few_ids = st.lists(ids, max_size=6)
all_params = st.builds(
    SamplingParams,
    max_tokens=st.just(100),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.4, 0.95]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 149, 500]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 0.7]),
    logit_bias=st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3),
    min_tokens=st.sampled_from([0, 0, 2, 50]),
    stop_token_ids=few_ids.map(tuple),
    ignore_eos=st.booleans(),
    bad_words=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    allowed_token_ids=st.one_of(st.none(), st.none(), st.lists(ids, min_size=1, max_size=20).map(tuple)),
    logprobs=st.sampled_from([None, None, 0, 3]),
)
situations = st.builds(
    Situation,
    params=all_params,
    seed=st.integers(-(2**63), 2**63 - 1),
    stream=st.integers(0, 5),
    prompt_ids=st.lists(st.integers(0, 20), min_size=1, max_size=10),
    output_ids=st.lists(st.integers(0, 8), max_size=8),
    eos_token_ids=few_ids.map(tuple),
    allowed_by_mask=st.one_of(st.none(), st.none(), st.lists(ids, max_size=20)),
)
