"""The meaning of sampling written plainly in NumPy and Python integers, independent of the engine's forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.sampling.params import SamplingParams

Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
MASK64 = 2**64 - 1


@dataclass(kw_only=True)
class Situation:
    """A sequence about to draw a token."""

    params: SamplingParams
    seed: int = 0
    stream: int = 0
    prompt_ids: Sequence[int] = (0,)
    output_ids: list[int] = field(default_factory=list)
    eos_token_ids: Sequence[int] = ()
    allowed_by_mask: Sequence[int] | None = None

    @property
    def position(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)


@dataclass
class Choice:
    """A token, and how far the choice was from another (0 is a tie that rounding may turn)."""

    token_id: int
    margin: float


def splitmix64(state: int) -> int:
    """Output of the published generator that has just stepped to `state`."""
    z = state & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def noise_bits(seed: int, stream: int, position: int, num_tokens: int) -> npt.NDArray[np.uint32]:
    """m of tokens 0..num_tokens-1, in NumPy's unsigned arithmetic."""
    gamma = 0x9E3779B97F4A7C15
    key = splitmix64(splitmix64(splitmix64(seed + gamma) + (stream + 1) * gamma) + (position + 1) * gamma)
    a, b = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
    x = np.arange(num_tokens, dtype=np.uint32)
    for shift, factor in ((16, a), (15, b)):
        x = (x ^ (x >> np.uint32(shift))) * factor
    x ^= x >> np.uint32(16)
    x = (x ^ np.uint32(key & 0xFFFFFFFF)) * a
    x ^= (x >> np.uint32(15)) ^ np.uint32(key >> 32)
    return np.uint32(2**31) - ((x * b) & np.uint32(0x7FFFFFFF))


def gumbel_noise(seed: int, stream: int, position: int, num_tokens: int) -> Floats64:
    uniform = noise_bits(seed, stream, position, num_tokens).astype(np.float32).astype(np.float64)
    return -np.log(-np.log1p(-uniform * (2.0**-31 * (1 - 2.0**-24))))


def processed(logits: Floats32, now: Situation) -> Floats32:
    """Logits after penalties, biases and bans, with excluded tokens at -inf."""
    out = np.where(np.isnan(logits), np.float32(-np.inf), logits).astype(np.float32)
    _penalize(out, now)
    for token_id, bias in now.params.logit_bias.items():
        out[token_id] += np.float32(bias)
    out[sorted(_banned(now))] = -1e9
    limits = [set(ids) for ids in (now.params.allowed_token_ids, now.allowed_by_mask) if ids is not None]
    if limits:
        inside = sorted(set.intersection(*limits))
        excluded = np.full_like(out, -np.inf)
        excluded[inside] = np.maximum(out[inside], np.float32(-1e9))
        return excluded
    return out


def _penalize(out: Floats32, now: Situation) -> None:
    params = now.params
    seen = {*now.prompt_ids, *now.output_ids} if params.repetition_penalty != 1.0 else set()
    penalty = np.float32(params.repetition_penalty)
    for token_id in seen:
        out[token_id] = out[token_id] / penalty if out[token_id] > 0 else out[token_id] * penalty
    for token_id in set(now.output_ids):
        count = now.output_ids.count(token_id)
        frequency = np.float32(count) * np.float32(params.frequency_penalty)
        out[token_id] = out[token_id] - frequency - np.float32(params.presence_penalty)


def _banned(now: Situation) -> set[int]:
    banned: set[int] = set()
    if len(now.output_ids) < now.params.min_tokens:
        banned.update(now.params.stop_token_ids)
        if not now.params.ignore_eos:
            banned.update(now.eos_token_ids)
    for *prefix, last in now.params.bad_words:
        if len(prefix) <= len(now.output_ids) and now.output_ids[len(now.output_ids) - len(prefix) :] == prefix:
            banned.add(last)
    return banned


def kept(logits: Floats32, params: SamplingParams) -> tuple[list[int], float]:
    """Token ids that may be drawn, likeliest first, and how near the last one was to being decided otherwise."""
    order = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    if params.top_k:
        order = order[: params.top_k]
    margin = 1.0
    if not np.isfinite(logits[order[0]]):
        return order[:1], margin
    ratio = np.exp((logits[order].astype(np.float64) - float(logits[order[0]])) / params.temperature)
    if params.top_p < 1.0:
        mass = np.cumsum(ratio) / ratio.sum()
        margin = min(margin, float(np.abs(mass - params.top_p).min()))
        order = order[: int((mass < params.top_p).sum()) + 1]
    if params.min_p > 0.0:
        tail = ratio[: len(order)]
        rest = tail[tail < 1]  # equals of the likeliest are 1 in any arithmetic
        margin = min(margin, float(np.abs(rest - params.min_p).min(initial=1.0)))
        order = [token_id for token_id, one in zip(order, tail, strict=True) if one >= params.min_p]
    return order, margin


def choose(logits: Floats32, now: Situation) -> Choice:
    """The token that has to come out."""
    logits = processed(logits, now)
    params = now.params
    if params.temperature < 0.01 or params.top_k == 1 or params.top_p == 0:
        return Choice(int(np.argmax(logits)), 1.0)
    ids, margin = kept(logits, params)
    noise = gumbel_noise(now.seed, now.stream, now.position, len(logits))
    scores = {token_id: float(logits[token_id]) / params.temperature + float(noise[token_id]) for token_id in ids}
    ranked = sorted(scores, key=lambda token_id: (-scores[token_id], token_id))
    if len(ranked) > 1 and math.isfinite(scores[ranked[0]]):
        gap = scores[ranked[0]] - scores[ranked[1]]
        # float32 keeps seven digits of a temperature and of a banned token's score
        margin = min(margin, gap / (1 + abs(scores[ranked[0]])))
    return Choice(ranked[0], margin)
