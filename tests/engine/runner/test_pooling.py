"""Which rows of a step make embeddings, and their sums."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from engine.kv.meter import KVMeter
from engine.request import GenerateRequest, Pooling
from engine.runner.pooling import PooledRows, pooled_rows, row_indices, sum_states
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import Lane
from engine.sequence import Sequence

NUM_PROMPT = 10


def lane(pooling: Pooling | None, start: int, stop: int) -> Lane:
    """A lane of a prompt of ten tokens, as the scheduler makes it."""
    request = GenerateRequest(
        request_id="r", prompt_ids=[1] * NUM_PROMPT, sampling=SamplingParams(max_tokens=0), pooling=pooling
    )
    sequence = Sequence(request, 0, 0, 0, frozenset(), KVMeter(num_pages=1).payer(""), list(request.prompt_ids))
    return Lane(
        sequence=sequence,
        run=0,
        start=start,
        num_tokens=stop - start,
        samples=False,
        feeds_back=False,
        reads_prompt=False,
        row=0,
        pages=array("i", [0]),
        copies=(),
        pools=pooling is not None and sequence.pools(stop),
    )


def test_the_mean_takes_every_row_and_the_last_token_only_its_own() -> None:
    lanes = [
        lane(Pooling.MEAN, 0, 4),
        lane(None, 3, 5),
        lane(Pooling.LAST, 0, 6),
        lane(Pooling.LAST, 6, NUM_PROMPT),
        lane(Pooling.MEAN, 9, NUM_PROMPT),
    ]
    starts = [0, 4, 6, 12, 16, 17]
    pooled = pooled_rows(lanes, starts)
    assert pooled == [PooledRows(0, 0, 4), PooledRows(3, 15, 16), PooledRows(4, 16, 17)]
    assert row_indices(pooled).tolist() == [0, 1, 2, 3, 15, 16]


def test_sums_are_exact_where_float32_would_lose_the_small_ones() -> None:
    states = torch.tensor([[2.0**24, 1.0], [1.0, -1.0], [1.0, 1.0], [5.0, 6.0]])
    sums = sum_states([PooledRows(2, 0, 3), PooledRows(5, 7, 8)], states)
    assert sums.keys() == {2, 5}
    assert sums[2].tolist() == [2.0**24 + 2, 1.0]
    assert sums[5].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("cuts", [[10], [1] * 10, [3, 3, 3, 1], [9, 1]])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_an_embedding_is_the_same_however_the_prompt_was_cut(pooling: Pooling, cuts: list[int]) -> None:
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((NUM_PROMPT, 3)).astype(np.float32))
    sequence = lane(pooling, 0, NUM_PROMPT).sequence
    assert sequence.embedding() is None
    start = 0
    for count in cuts:
        part = lane(pooling, start, start + count)
        for pooled in pooled_rows([part], [0, count]) if part.pools else ():
            sequence.pool(sum_states([pooled], rows[start + pooled.first : start + pooled.last])[0])
        start += count
    expected = rows.double().mean(0) if pooling is Pooling.MEAN else rows[-1].double()
    data = sequence.embedding()
    assert data is not None
    assert np.frombuffer(data, "<f4").tolist() == expected.float().tolist()
