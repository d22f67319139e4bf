"""Batches as flat arrays, against what they mean lane by lane."""

from __future__ import annotations

import random
from array import array

import pytest
import torch

from engine.kv.meter import KVMeter
from engine.kv.storage import KVStorage
from engine.request import GenerateRequest
from engine.runner.inputs import FedTokens, InputStager
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import Batch, Lane
from engine.sequence import Sequence

SIZE = 4
ROWS = 8


def _stager(last_tokens: torch.Tensor) -> InputStager:
    storage = KVStorage(
        num_layers=1,
        num_pages=64,
        page_size=SIZE,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return InputStager(storage, last_tokens, hidden_size=8)


def _lane(rng: random.Random, row: int, *, decodes: bool) -> Lane:
    """A lane of random length; `decodes` makes it one token long, fed back or known."""
    tokens = [rng.randrange(100) for _ in range(rng.randint(2, 30))]
    request = GenerateRequest(
        request_id=str(row),
        prompt_ids=tokens[: rng.randint(1, len(tokens))],
        sampling=SamplingParams(max_tokens=50),
        prompt_logprobs=None if decodes else rng.choice([None, 0, 2]),
    )
    sequence = Sequence(request, 0, row, 0, frozenset(), KVMeter(num_pages=1).payer(""), tokens)
    feeds_back = decodes and rng.random() < 0.5
    start = len(tokens) if feeds_back else len(tokens) - 1 if decodes else rng.randrange(len(tokens))
    stop = start + 1 if decodes else rng.randint(start + 1, len(tokens))
    return Lane(
        sequence=sequence,
        run=0,
        start=start,
        num_tokens=stop - start,
        samples=stop >= len(tokens),
        feeds_back=feeds_back,
        reads_prompt=request.prompt_logprobs is not None and start < sequence.num_prompt - 1,
        row=row,
        pages=array("i", rng.sample(range(64), -(-stop // SIZE))),
        copies=[(1, 2)] if rng.random() < 0.2 else (),
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_staged_step_says_of_every_token_what_its_lane_says(seed: int) -> None:
    rng = random.Random(seed)
    decodes = seed % 3 == 0
    batch = Batch()
    for row in rng.sample(range(ROWS), rng.randint(1, ROWS)):
        batch.append(_lane(rng, row, decodes=decodes or rng.random() < 0.3))
    last_tokens = torch.arange(1000, 1000 + ROWS)
    staged = _stager(last_tokens).stage(batch)
    if staged.fed is not None:
        staged.fed.fill()

    assert staged.inputs is not None
    inputs, layout = staged.inputs, staged.inputs.layout
    positions = [position for lane in batch.lanes for position in range(lane.start, lane.stop)]
    owners = [lane for lane in batch.lanes for _ in range(lane.num_tokens)]
    pairs = list(zip(owners, positions, strict=True))
    assert inputs.positions.tolist() == positions
    assert layout.slots.tolist() == [lane.pages[at // SIZE] * SIZE + at % SIZE for lane, at in pairs]
    assert inputs.token_ids.tolist() == [
        1000 + lane.row if lane.feeds_back else lane.sequence.token_ids[at] for lane, at in pairs
    ]
    assert list(layout.context_lens) == [lane.stop for lane in batch.lanes]
    assert [list(table) for table in layout.block_tables] == [list(lane.pages) for lane in batch.lanes]
    assert staged.copies == [copy for lane in batch.lanes for copy in lane.copies]

    starts = list(layout.query_starts)
    assert starts[0] == 0
    assert [starts[i + 1] - starts[i] for i in range(len(batch.lanes))] == [lane.num_tokens for lane in batch.lanes]
    assert layout.tables.pages.tolist() == [page for lane in batch.lanes for page in lane.pages]


@pytest.mark.parametrize("seed", range(60))
def test_rows_read_out_are_those_that_sample_and_those_whose_prompt_is_asked_about(seed: int) -> None:
    rng = random.Random(1000 + seed)
    batch = Batch()
    for row in rng.sample(range(ROWS), rng.randint(1, ROWS)):
        batch.append(_lane(rng, row, decodes=seed % 3 == 0 or rng.random() < 0.3))
    staged = _stager(torch.zeros(ROWS, dtype=torch.int64)).stage(batch)

    assert staged.inputs is not None
    positions, rows = staged.inputs.positions.tolist(), staged.inputs.readout_rows.tolist()
    sampling = [lane for lane in batch.lanes if lane.samples]
    places = range(len(rows)) if staged.sample_rows is None else staged.sample_rows.tolist()
    assert [positions[rows[place]] for place in places] == [lane.stop - 1 for lane in sampling]
    assert [batch.lanes[place] for place in staged.readouts.sampling] == sampling
    assert [(lane.row, lane.position) for lane in staged.sample_lanes] == [(lane.row, lane.stop) for lane in sampling]
    assert [lane.num_output for lane in staged.sample_lanes] == [
        lane.stop - lane.sequence.num_prompt for lane in sampling
    ]

    asked = [place for place, lane in enumerate(batch.lanes) if lane.reads_prompt]
    assert [readout.lane for readout in staged.prompt_readouts] == asked
    for readout in staged.prompt_readouts:
        lane = batch.lanes[readout.lane]
        found = [positions[row] for row in rows[readout.first : readout.last]]
        assert found == list(range(lane.start, min(lane.stop, lane.sequence.num_prompt - 1)))
        assert readout.targets == [lane.sequence.token_ids[position + 1] for position in found]


def test_tokens_are_fed_back_in_tensors_as_in_arrays() -> None:
    last_tokens = torch.arange(100, 110)
    token_ids = torch.zeros(4, dtype=torch.int64)
    places, rows = torch.tensor([3, 1]), torch.tensor([7, 2])
    FedTokens(token_ids, places, last_tokens, rows).fill()
    assert token_ids.tolist() == [0, 102, 0, 107]
    array_ids = torch.zeros(4, dtype=torch.int64).numpy()
    FedTokens(array_ids, places.numpy(), last_tokens.numpy(), rows.numpy()).fill()
    assert array_ids.tolist() == token_ids.tolist()
