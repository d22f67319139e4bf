"""Keyed randomness of device programs in torch: the bits of `engine.programs.reference`, for many requests at once.

Letters: B requests, V vocabulary, C numbers.
"""

from __future__ import annotations

import torch

from engine.sampling.draw import TokenDraw
from engine.sampling.random import UNIFORM_SCALE, fill_noise, gumbel, position_keys, token_hashes

_MIX32_A = 0x7FEB352D
_MIX32_B = 0x846CA68B
_MASK32 = 0xFFFFFFFF


class Draws:
    """Random numbers and draws for one vocabulary on one device.

    Attributes:
        hashes: [V] int32, of every token.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.hashes = token_hashes(vocab_size, device)
        self._zero_hash = token_hashes(1, device)
        self._tokens = TokenDraw(vocab_size, device)
        self._vocab_size = vocab_size

    def numbered(self, keys: torch.Tensor, number: int) -> torch.Tensor:
        """The halves of the keys of a program's draw of this number: [B, 2] int32 from [B] int64."""
        if number == 0:
            return keys[:, None].view(torch.int32).view(-1, 2)
        return position_keys(keys, torch.full_like(keys, number - 1))

    def named(self, names: torch.Tensor) -> torch.Tensor:
        """Keys made of [B] int64 numbers, for `hash_uniform`."""
        return position_keys(names, torch.zeros_like(names))

    def uniform(self, keys: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        """[B, C] float32 in (0, 1).

        Args:
            keys: [B, 2] int32.
            index: [B or 1, C] int64; None stands for all token ids.
        """
        return self._noise(keys, index).mul_(-UNIFORM_SCALE)

    def single(self, keys: torch.Tensor) -> torch.Tensor:
        """One number a request: [B, 1] float32 in (0, 1)."""
        return self._filled(self._zero_hash[None], keys).mul_(-UNIFORM_SCALE)

    def gumbel(self, keys: torch.Tensor) -> torch.Tensor:
        """Standard Gumbel noise of every token: [B, V] float32."""
        return gumbel(self._noise(keys, None)).float()

    def draw(self, scores: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """argmax of scores [B, V] float32 plus Gumbel noise: [B, 1] int64."""
        limit = torch.finfo(torch.float32).max
        finite = torch.nan_to_num(scores, nan=-torch.inf, posinf=limit, neginf=-torch.inf)
        finite = finite.expand(len(keys), -1).contiguous()
        if finite.shape[1] == self._vocab_size:
            return self._tokens.draw(finite, finite.new_ones(len(keys)), keys)[:, None]
        noise = gumbel(self._filled(self.hashes[: finite.shape[1]], keys))
        return noise.add_(finite).argmax(dim=-1, keepdim=True)

    def _noise(self, keys: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
        return self._filled(self.hashes if index is None else _hashes_of(index), keys)

    def _filled(self, hashes: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        shape = (len(keys), hashes.shape[-1])
        out = torch.empty(shape, dtype=torch.int32, device=keys.device)
        return fill_noise(out, torch.empty_like(out), hashes, keys)


def _hashes_of(index: torch.Tensor) -> torch.Tensor:
    """`mix32` of the low 32 bits of any numbers, int32 of the same shape."""
    value = index & _MASK32
    value = ((value ^ (value >> 16)) * _MIX32_A) & _MASK32
    value = ((value ^ (value >> 15)) * _MIX32_B) & _MASK32
    value = value ^ (value >> 16)
    return torch.where(value >= 2**31, value - 2**32, value).to(torch.int32)
