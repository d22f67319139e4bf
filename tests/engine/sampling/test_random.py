"""Keyed counter randomness: the same bits everywhere, and bits that look random."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling import random
from tests.engine.sampling import reference

CPU = torch.device("cpu")
SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**31)


def device_noise(keys: list[int], positions: list[int], num_tokens: int) -> torch.Tensor:
    """m of every lane and token as float32, by the tensor form."""
    out, scratch = (torch.empty((len(keys), num_tokens), dtype=torch.int32) for _ in range(2))
    lane_keys = random.position_keys(torch.tensor(keys), torch.tensor(positions))
    return -random.fill_noise(out, scratch, random.token_hashes(num_tokens, CPU), lane_keys)


def test_mix64_is_the_published_splitmix64() -> None:
    gamma = 0x9E3779B97F4A7C15
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [random.mix64(1234567 + step * gamma) for step in range(1, 5)] == published


@given(seed=SEEDS, stream=st.integers(0, 2**20), position=POSITIONS)
def test_tensors_integers_and_numpy_agree_bit_for_bit(seed: int, stream: int, position: int) -> None:
    on_device = device_noise([random.stream_key(seed, stream)], [position], 70)[0].numpy()
    by_integers = [random.uniform_bits(seed, stream, position, token_id) for token_id in range(70)]
    by_numpy = reference.noise_bits(seed, stream, position, 70)
    assert by_numpy.tolist() == by_integers
    np.testing.assert_array_equal(on_device, by_numpy.astype(np.float32))


def test_large_token_ids_agree_too() -> None:
    num_tokens = 200_000
    by_numpy = reference.noise_bits(-1, 3, 17, num_tokens).astype(np.float32)
    on_device = device_noise([random.stream_key(-1, 3)], [17], num_tokens)[0]
    np.testing.assert_array_equal(on_device.numpy(), by_numpy)


@given(seed=SEEDS, position=POSITIONS)
def test_a_lanes_noise_does_not_depend_on_its_batch(seed: int, position: int) -> None:
    key = random.stream_key(seed, 0)
    alone = device_noise([key], [position], 40)
    among = device_noise([1, key, -7], [3, position, 9], 40)
    assert torch.equal(alone[0], among[1])


@pytest.mark.parametrize("bits", [1, 2, 2**31 - 129, 2**31 - 1, 2**31])
def test_uniform_numbers_are_never_0_or_1(bits: int) -> None:
    in_float32 = np.float32(bits) * np.float32(random.UNIFORM_SCALE)
    assert 0 < in_float32 < 1
    assert 0 < np.float64(np.float32(bits)) * random.UNIFORM_SCALE < 1


@pytest.mark.parametrize("bits", [1, 2**31])
def test_gumbel_noise_is_finite_at_both_ends(bits: int) -> None:
    assert random.gumbel(torch.tensor([[-float(bits)]])).isfinite().all()


def test_streams_seeds_and_positions_all_have_their_own_keys() -> None:
    seeds = [*range(-50, 50), -(2**63), 2**63 - 1]
    keys = [random.stream_key(seed, stream) for seed in seeds for stream in range(20)]
    at_positions = random.position_keys(torch.tensor(keys).repeat(50), torch.arange(50).repeat_interleave(len(keys)))
    assert len(set(map(tuple, at_positions.tolist()))) == 50 * len(keys)


def uniforms(seed: int, stream: int, num_positions: int, num_tokens: int) -> torch.Tensor:
    keys = [random.stream_key(seed, stream)] * num_positions
    return device_noise(keys, list(range(num_positions)), num_tokens).double() * random.UNIFORM_SCALE


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62, -(2**63)])
def test_uniform_numbers_fill_the_interval_evenly(seed: int) -> None:
    counts = torch.histc(uniforms(seed, 0, 2000, 100).flatten(), bins=100, min=0, max=1)
    chi_square = ((counts - 2000) ** 2 / 2000).sum().item()
    assert chi_square < 99 + 6 * math.sqrt(2 * 99)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@pytest.mark.parametrize("seed", [0, 5, -1, -(2**63)])
def test_neighbouring_positions_tokens_seeds_and_streams_are_uncorrelated(seed: int) -> None:
    base = uniforms(seed, 0, 1000, 200)
    bound = 6 / math.sqrt(base.numel())
    assert abs(correlation(base[1:], base[:-1])) < bound
    assert abs(correlation(base[:, 1:], base[:, :-1])) < bound
    assert abs(correlation(base, uniforms(seed + 1, 0, 1000, 200))) < bound
    assert abs(correlation(base, uniforms(seed, 1, 1000, 200))) < bound


def test_no_pair_of_tokens_moves_together() -> None:
    pairs = torch.corrcoef(uniforms(3, 0, 4000, 150).T).fill_diagonal_(0)
    assert pairs.abs().max().item() < 6 / math.sqrt(4000)
