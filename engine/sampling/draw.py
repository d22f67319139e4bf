"""One token a lane from softmax(logits / temperature), by the Gumbel-max trick.

argmax(logits / temperature + Gumbel noise) is distributed as softmax(logits / temperature) (Gumbel 1954; Maddison,
Tarlow, Minka, arXiv 1411.0030). Noise belongs to the token id, so dropping tokens before the draw changes nothing but
their chance to win.

Letters: R lanes, V vocabulary, B tokens a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine.sampling.random import UNIFORM_SCALE, fill_noise, gumbel, token_hashes

_BLOCK = 64
_FEW_BLOCKS = 4
_CHUNK_ELEMENTS = 2**21  # what stays in a CPU's cache
_DEVICE_CHUNK_ELEMENTS = 2**24
_NATS_PER_STEP = math.log(2) * 2.0**-23  # one unit in a float32's bits, as a logarithm
_BIAS_NATS = (256 - 127 - 31) * math.log(2)  # sign bit, exponent bias and 2**31 of noise bits, as a logarithm


def first_argmax(values: torch.Tensor) -> torch.Tensor:
    """The lowest index of each row's greatest value.

    Args:
        values: [R, V] float32 without NaN.

    Returns:
        [R] int64.
    """
    if values.device.type != "cpu" or values.shape[1] < _BLOCK:
        return values.argmax(dim=-1)
    # torch's argmax on the CPU is scalar; block maxima are vectorised, and the first of the best blocks holds the
    # first of the best tokens.
    peaks = _by_block(values, torch.amax)
    block = peaks.argmax(dim=-1, keepdim=True)
    ids = _block_ids(block, values.shape[1])
    return ids.gather(1, values.gather(1, ids).argmax(dim=-1, keepdim=True)).squeeze(1)


class TokenDraw:
    """Draws tokens of one vocabulary on one device; owns the scratch memory that takes."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._hashes = token_hashes(vocab_size, device)
        self._scratch: list[torch.Tensor] = []

    def draw(self, logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Draws over the whole vocabulary. Waits for nothing on an accelerator.

        Args:
            logits: [R, V] float32 without NaN or +inf; -inf excludes a token.
            temperature: [R] float32, positive.
            keys: [R, 2] int32 from `position_keys`.

        Returns:
            [R] int64; 0 where every logit is -inf.
        """
        bounded = self._device.type == "cpu" and self._vocab_size >= _BLOCK
        one = self._draw_bounded if bounded else self._draw_direct
        drawn = [one(logits[part], temperature[part, None], keys[part]) for part in self.parts(len(logits))]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def parts(self, num_rows: int) -> list[slice]:
        """Rows that scratch memory has room for at once."""
        chunk = _CHUNK_ELEMENTS if self._device.type == "cpu" else _DEVICE_CHUNK_ELEMENTS
        rows = max(1, chunk // self._vocab_size)
        return [slice(start, min(start + rows, num_rows)) for start in range(0, max(1, num_rows), rows)]

    def scratch(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two [num_rows, V] float32 tensors of any content, until the next draw; for one of `parts` at most."""
        out, scratch = self._buffers(num_rows)
        return out.view(torch.float32), scratch.view(torch.float32)

    def score(
        self, logits: torch.Tensor, ids: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        """What tokens compete with.

        Args:
            logits: [R, C] float32 of the tokens.
            ids: [R, C] int64.
            temperature: [R, 1] float32.
            keys: [R, 2] int32.

        Returns:
            [R, C] float64: logits / temperature plus the tokens' Gumbel noise.
        """
        out = torch.empty(ids.shape, dtype=torch.int32, device=ids.device)
        noise = fill_noise(out, torch.empty_like(out), self._hashes[ids], keys)
        return gumbel(noise).add_(logits.double().div_(temperature))

    def _draw_direct(self, logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out, scratch = self._buffers(len(logits))
        exponential = fill_noise(out, scratch, self._hashes, keys).mul_(UNIFORM_SCALE).log1p_().neg_()
        scaled = torch.div(logits, temperature, out=out.view(torch.float32))
        return scaled.sub_(exponential.log_()).argmax(dim=-1)

    def _draw_bounded(self, logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The same draw without a logarithm per token.

        -log(-log(1 - u)) <= -log(u), and the bits of a float32 read as an integer are a lower bound of its log2
        (Mitchell 1962), so every score has an upper bound made of one conversion and one multiply-add. Only tokens in
        blocks whose bound reaches the best score found are scored exactly.
        """
        out, scratch = self._buffers(len(logits))
        noise = fill_noise(out, scratch, self._hashes, keys)
        cost = _costs(noise, logits, temperature, out.view(torch.float32))
        return _best_of_blocks(logits, temperature, noise, _by_block(cost, torch.amin), _FEW_BLOCKS)

    def _buffers(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._scratch or len(self._scratch[0]) < num_rows:
            shape = (num_rows, self._vocab_size)
            self._scratch = [torch.empty(shape, dtype=torch.int32, device=self._device) for _ in range(2)]
        return self._scratch[0][:num_rows], self._scratch[1][:num_rows]


def _by_block(values: torch.Tensor, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Reduces [R, V] to [R, V / B]; the last block may be short."""
    whole = values.shape[1] // _BLOCK * _BLOCK
    blocks = reduce(values[:, :whole].view(len(values), -1, _BLOCK), dim=-1)
    if whole == values.shape[1]:
        return blocks
    return torch.cat((blocks, reduce(values[:, whole:], dim=-1, keepdim=True)), dim=1)


def _block_ids(blocks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The token ids [R, ..., B] of blocks [R, ...]; a short block repeats the last token."""
    return (blocks * _BLOCK + torch.arange(_BLOCK)).clamp_max_(vocab_size - 1)


def _costs(noise: torch.Tensor, logits: torch.Tensor, temperature: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Writes to `out` [R, V] float32 what falls as the upper bound of a token's score rises."""
    out.copy_(noise.view(torch.int32))
    return out.addcmul_(logits, temperature.reciprocal(), value=-1 / _NATS_PER_STEP)


def _greatest_cost(score: torch.Tensor) -> torch.Tensor:
    """A token that costs more than this has less than `score`."""
    slack = score.abs().mul_(1e-6).add_(1e-3)  # float32 rounding of the bound
    return (score - slack + _BIAS_NATS).div_(-_NATS_PER_STEP)


def _best_of_blocks(
    logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor, floors: torch.Tensor, num_blocks: int
) -> torch.Tensor:
    """Scores the tokens of each lane's most promising blocks, and of more blocks where those may hide a better one.

    Args:
        logits: [R, V] float32.
        temperature: [R, 1] float32.
        noise: [R, V] float32.
        floors: [R, V / B] float32, least cost in each block; cost falls as the bound of the score rises.
        num_blocks: Blocks to begin with.

    Returns:
        [R] int64, the lowest id among equals.
    """
    num_blocks = min(num_blocks, floors.shape[1])
    least, blocks = floors.topk(min(num_blocks + 1, floors.shape[1]), largest=False)
    in_order = blocks[:, :num_blocks].sort(dim=-1).values
    ids = _block_ids(in_order[:, :, None], logits.shape[1]).flatten(1)
    scores = gumbel(noise.gather(1, ids)).add_(logits.gather(1, ids).double().div_(temperature))
    best, place = scores.max(dim=-1, keepdim=True)
    best_ids = ids.gather(1, place).squeeze(1)
    if num_blocks == floors.shape[1]:
        return best_ids
    for lane in (least[:, -1:] <= _greatest_cost(best)).squeeze(1).nonzero().flatten().tolist():
        row = slice(lane, lane + 1)
        best_ids[row] = _best_of_blocks(logits[row], temperature[row], noise[row], floors[row], num_blocks * 8)
    return best_ids
