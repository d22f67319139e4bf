"""Keyed counter randomness: the bits of a draw are a function of (seed, stream, position) and token id alone.

No generator state exists, so a draw does not depend on the batch it runs in, on the device, on preemption, or on how
many tokens were dropped before it.

(seed, stream, position) become a 64-bit key by SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014; constants of S. Vigna's public-domain splitmix64.c). The key and the token id become 31 bits
by the two multiply-xorshift rounds of `lowbias32` (C. Wellons, github.com/skeeto/hash-prospector, public domain),
the halves of the key entering before either multiplication.

Letters: R lanes, C tokens of a lane.
"""

from __future__ import annotations

import torch

_MASK64 = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX64_A = 0xBF58476D1CE4E5B9
_MIX64_B = 0x94D049BB133111EB
_MIX32_A = 0x7FEB352D
_MIX32_B = 0x846CA68B

# Of the tensors' own type: a Python number would be converted anew by every operation.
_FACTOR_A = torch.tensor(_MIX32_A, dtype=torch.int32)
_FACTOR_B = torch.tensor(_MIX32_B - 2**32, dtype=torch.int32)
_SHIFT = torch.tensor(15, dtype=torch.int32)
_SHIFTED_BITS = torch.tensor(0x1FFFF, dtype=torch.int32)
_SIGN_BIT = torch.tensor(-(2**31), dtype=torch.int32)

UNIFORM_SCALE = 2.0**-31 * (1 - 2.0**-24)
"""Turns m = 1..2**31 into a uniform number that is neither 0 nor 1, in float32 as in float64."""


def _signed(value: int, bits: int) -> int:
    """The two's complement reading of an unsigned number."""
    return value - 2**bits if value >> (bits - 1) else value


def mix64(value: int) -> int:
    """SplitMix64's finaliser on an unsigned 64-bit number."""
    value &= _MASK64
    value = (value ^ (value >> 30)) * _MIX64_A & _MASK64
    value = (value ^ (value >> 27)) * _MIX64_B & _MASK64
    return value ^ (value >> 31)


def mix32(value: int) -> int:
    """`lowbias32` on an unsigned 32-bit number."""
    value = (value ^ (value >> 16)) * _MIX32_A & 0xFFFFFFFF
    value = (value ^ (value >> 15)) * _MIX32_B & 0xFFFFFFFF
    return value ^ (value >> 16)


def stream_key(seed: int, stream: int) -> int:
    """Names one random stream: a signed 64-bit number for any integers, negative ones included."""
    return _signed(mix64(mix64(seed + _GAMMA) + (stream + 1) * _GAMMA), 64)


def uniform_bits(seed: int, stream: int, position: int, token_id: int) -> int:
    """The noise of one token in plain integers: what every device must compute.

    Returns:
        m in 1..2**31; the uniform number is `float32(m) * UNIFORM_SCALE`.
    """
    key = mix64(stream_key(seed, stream) + (position + 1) * _GAMMA)
    value = (mix32(token_id) ^ (key & 0xFFFFFFFF)) * _MIX32_A & 0xFFFFFFFF
    value ^= (value >> 15) ^ (key >> 32)
    value = value * _MIX32_B & 0xFFFFFFFF
    return 2**31 - (value & 0x7FFFFFFF)


def position_keys(stream_keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Mixes positions into stream keys, on their device, without waiting for it.

    Args:
        stream_keys: [R] int64 from `stream_key`.
        positions: [R] int64.

    Returns:
        [R, 2] int32: low and high half of each lane's key.
    """
    key = stream_keys + (positions + 1) * _signed(_GAMMA, 64)
    key = (key ^ ((key >> 30) & (2**34 - 1))) * _signed(_MIX64_A, 64)
    key = (key ^ ((key >> 27) & (2**37 - 1))) * _signed(_MIX64_B, 64)
    key = key ^ ((key >> 31) & (2**33 - 1))
    return key.view(torch.int32).view(-1, 2)


def token_hashes(vocab_size: int, device: torch.device) -> torch.Tensor:
    """`mix32` of every token id: [V] int32, made once."""
    value = torch.arange(vocab_size, dtype=torch.int64)
    value = ((value ^ (value >> 16)) * _MIX32_A) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * _MIX32_B) & 0xFFFFFFFF
    value = value ^ (value >> 16)
    return torch.where(value >= 2**31, value - 2**32, value).to(torch.int32).to(device)


def fill_noise(out: torch.Tensor, scratch: torch.Tensor, hashes: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Writes each token's noise over two buffers.

    `lowbias32` ends in one more xorshift, left out here: it changes low bits only, and a draw is decided by high ones.

    Args:
        out: [R, C] int32, overwritten.
        scratch: [R, C] int32, overwritten.
        hashes: [C] or [R, C] int32, `token_hashes` of the tokens.
        keys: [R, 2] int32 from `position_keys`.

    Returns:
        -m of `uniform_bits` as float32: `scratch` under another type.
    """
    torch.bitwise_xor(hashes, keys[:, :1], out=out)
    out.mul_(_FACTOR_A)
    torch.bitwise_right_shift(out, _SHIFT, out=scratch)
    scratch.bitwise_and_(_SHIFTED_BITS)  # int32 shifts copy the sign; the hash wants zeros
    out.bitwise_xor_(scratch)
    out.bitwise_xor_(keys[:, 1:])
    out.mul_(_FACTOR_B)
    # The low 31 bits, minus 2**31: one operation to a number that is never 0 and converts to float as it is.
    out.bitwise_or_(_SIGN_BIT)
    return scratch.view(torch.float32).copy_(out)


def gumbel(noise: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise in float64, for the few tokens that are scored exactly.

    With u uniform, -log(-log(1 - u)) is Gumbel; small u, where float32 is finest, is the side that wins draws.

    Args:
        noise: [R, C] float32 from `fill_noise`.
    """
    return (noise.double() * UNIFORM_SCALE).log1p_().neg_().log_().neg_()
