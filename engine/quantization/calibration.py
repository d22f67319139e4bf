"""What is taken out of a model's keys before they are rounded, measured when the engine starts.

Letters: B lanes, T tokens of a lane, G key/value heads, D head_dim.
The model reads a few lines of random tokens, the same at every start, at positions all over its context: how keys are
spread over channels is a matter of the model far more than of the text, but rotation turns their means with position.
Only how finely keys are rounded depends on all this, never what attention means.

Measured on SmolLM2, squared error of scores by what attention gives weight, in thousandths, at positions 0..400 and at
3000 and 7000: int8 0.88 and 0.71 as keys are, 0.34 and 0.36 as here, 0.16 and 7.4 with means and spreads of positions
0..512 alone; fp8 4.6 and 9.0 as keys are, 4.2 and 8.1 as here, 8.3 and 7.7 with every mean taken out.
"""

from __future__ import annotations

import torch

from engine.attention.backend import LaneLayout
from engine.kv.storage import KVStorage
from engine.models.step import StepInputs, StepModel

NUM_LANES = 8
LANE_TOKENS = 64
_FLOOR = 0.05
"""Least spread of a channel, as a share of its head's largest: what was nearly nothing here may be more elsewhere."""
_STEADY = 0.8
"""fp8, whose steps grow with a number, has a mean taken out only where it makes up this share of the squares of the two
channels that are rotated together: others turn with position, and keys would be larger without them in places."""


def calibrate(model: StepModel, storage: KVStorage, max_position: int) -> None:
    """Measures keys and sets the storage's smoothing; computes a step of 512 tokens, and writes nothing to its pages.

    Args:
        model: Whose keys.
        storage: That will hold them; kept as codes.
        max_position: Positions that sequences may have: keys are measured all over them.
    """
    assert storage.smoothing is not None
    scratch = KVStorage(
        num_layers=len(storage.layers),
        num_pages=NUM_LANES * -(-LANE_TOKENS // storage.page_size),
        page_size=storage.page_size,
        num_kv_heads=storage.num_kv_heads,
        head_dim=storage.head_dim,
        dtype=storage.read_dtype,
        device=storage.device,
    )
    step = _step(model, scratch, max_position)
    model.forward(step)
    for layer in range(len(storage.layers)):
        keys = scratch.gather(layer, step.layout.slots)[0].float()
        if storage.dtype == torch.int8:
            mean = keys.mean(0)
            storage.smoothing.scale[layer] = _scale(keys - mean)
        else:
            mean = steady_mean(keys)
        storage.smoothing.mean[layer] = mean


def steady_mean(keys: torch.Tensor) -> torch.Tensor:
    """Means [G, D] of keys [T, G, D]; 0 where they turn with position."""
    mean = keys.mean(0)
    half = keys.shape[-1] // 2
    squares, of_mean = (each + each.roll(half, -1) for each in (keys.square().mean(0), mean.square()))
    return torch.where(of_mean > _STEADY * squares, mean, 0.0)


def _scale(keys: torch.Tensor) -> torch.Tensor:
    """What channels [G, D] are divided by: the square root of their spread, so that one that is wider elsewhere than
    here takes not all of the others' precision. fp8, which has exponents, would gain nothing."""
    spread = keys.abs().amax(0)
    return spread.clamp_min(spread.amax(-1, keepdim=True) * _FLOOR).clamp_min(1e-6).sqrt()


def _step(model: StepModel, scratch: KVStorage, max_position: int) -> StepInputs:
    """All lanes at once, each beginning at another position."""
    size, device = scratch.page_size, scratch.device
    tokens = torch.randint(
        model.config.vocab_size, (NUM_LANES * LANE_TOKENS,), generator=torch.Generator().manual_seed(0)
    )
    starts = torch.linspace(0, max(0, max_position - LANE_TOKENS), NUM_LANES).long()
    positions = (starts[:, None] + torch.arange(LANE_TOKENS)).flatten()
    num_pages = -(-LANE_TOKENS // size)
    first_slots = torch.arange(NUM_LANES) * num_pages * size
    layout = LaneLayout(
        query_starts=[LANE_TOKENS * lane for lane in range(NUM_LANES + 1)],
        context_lens=[LANE_TOKENS] * NUM_LANES,
        block_tables=[list(range(lane * num_pages, (lane + 1) * num_pages)) for lane in range(NUM_LANES)],
        slots=(first_slots[:, None] + torch.arange(LANE_TOKENS)).flatten().to(device),
    )
    return StepInputs(
        token_ids=tokens.to(device),
        positions=positions.to(device),
        layout=layout,
        storage=scratch,
        readout_rows=torch.tensor([0], device=device),
    )
