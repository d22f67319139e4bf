"""Rows of the sampler: filled, released, filled again, nothing left over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.sampling.history import RowPool
from engine.sampling.params import SamplingParams
from engine.sampling.state import SamplerState

CPU = torch.device("cpu")
V = 70


def new_state(num_rows: int = 3) -> SamplerState:
    return SamplerState(num_rows=num_rows, vocab_size=V, device=CPU)


def assign(state: SamplerState, row: int, output_ids: tuple[int, ...] = (), **params: Any) -> None:
    state.assign(
        row,
        params=SamplingParams(max_tokens=50, **params),
        seed=1,
        stream=0,
        prompt_ids=[5, 6, 5],
        output_ids=output_ids,
        eos_token_ids=[2],
    )


def test_the_newest_token_is_the_last_of_output_or_else_prompt() -> None:
    state = new_state()
    assign(state, 0)
    assign(state, 1, (8, 9))
    assert state.last_tokens.tolist() == [5, 9, 0]


def test_plain_rows_take_no_memory_of_the_vocabularys_size() -> None:
    state = new_state()
    assign(state, 0, top_p=0.9, top_k=40, logit_bias={3: 1.0}, bad_words=((4,),), min_tokens=2)
    assert state.counts.rows.shape[0] == 0
    assert state.history.rows.shape[0] == 0


def test_only_penalties_take_counts_and_only_penalties_and_long_bad_words_take_history() -> None:
    state = new_state()
    assign(state, 0, presence_penalty=0.5)
    assign(state, 1, bad_words=((3, 4),))
    assert (state.counts.num_taken, state.history.num_taken) == (1, 2)


def test_counts_hold_output_occurrences_and_the_prompt_only_if_it_is_penalized() -> None:
    state = new_state()
    assign(state, 0, (6, 6, 7), repetition_penalty=1.1)
    assign(state, 1, (6, 6, 7), frequency_penalty=1.0)
    slots = [state[row].counts_slot for row in (0, 1)]
    with_prompt, output_only = (state.counts.rows[slot] for slot in slots)
    assert {i: int(with_prompt[i]) for i in (5, 6, 7, 8)} == {5: 1, 6: 5, 7: 2, 8: 0}
    assert {i: int(output_only[i]) for i in (5, 6, 7, 8)} == {5: 0, 6: 4, 7: 2, 8: 0}


def test_a_slot_taken_again_holds_nothing_of_its_last_owner() -> None:
    state = new_state()
    assign(state, 0, (6, 7, 8), frequency_penalty=1.0)
    state.release(0)
    assign(state, 1, frequency_penalty=1.0)
    assert state.counts.rows.count_nonzero() == 0
    assert state.history.rows.count_nonzero() == 0


def test_memory_of_every_row_comes_back() -> None:
    state = new_state(8)
    for _ in range(3):
        for row in range(8):
            assign(state, row, (1, 2), presence_penalty=1.0, bad_words=((3, 4),))
        for row in range(8):
            state.release(row)
    assert state.counts.num_taken == state.history.num_taken == 0
    assert len(state.counts.rows) == 8


def test_assigning_an_occupied_row_frees_what_it_held() -> None:
    state = new_state()
    assign(state, 0, presence_penalty=1.0)
    assign(state, 0)
    assert state.counts.num_taken == state.history.num_taken == 0


def test_releasing_twice_is_harmless_and_an_unassigned_row_is_refused() -> None:
    state = new_state()
    assign(state, 0, presence_penalty=1.0)
    state.release(0)
    state.release(0)
    assert state.counts.num_taken == 0
    with pytest.raises(KeyError, match="row 0"):
        state[0]


def test_allowed_ids_become_little_endian_bits() -> None:
    state = new_state()
    assign(state, 0, allowed_token_ids=(0, 31, 33, 69))
    allowed = state[0].allowed
    assert allowed is not None
    assert allowed.dtype == torch.int32
    assert [word & 0xFFFFFFFF for word in allowed.tolist()] == [1 | 1 << 31, 1 << 1, 1 << 5]


def test_eos_is_an_early_stop_unless_ignored() -> None:
    state = new_state()
    assign(state, 0, min_tokens=3, stop_token_ids=(9,))
    assign(state, 1, min_tokens=3, stop_token_ids=(9,), ignore_eos=True)
    assign(state, 2, stop_token_ids=(9,))
    assert [state[row].early_stop_ids for row in range(3)] == [(2, 9), (9,), ()]


def test_a_pool_grows_in_both_directions_and_keeps_its_rows() -> None:
    pool = RowPool(2, torch.int64, CPU)
    taken = [pool.take() for _ in range(5)]
    assert len(set(taken)) == 5
    for slot in taken:
        pool.rows[slot] = slot + 10
    pool.ensure_width(7)
    assert pool.rows.shape[1] >= 7
    assert all(pool.rows[slot, :2].tolist() == [slot + 10] * 2 for slot in taken)
    assert all(pool.rows[slot, 2:].count_nonzero() == 0 for slot in taken)


def test_a_pool_hands_out_zeros() -> None:
    pool = RowPool(3, torch.int32, CPU)
    slot = pool.take()
    pool.rows[slot] = 7
    pool.give_back(slot)
    assert pool.rows[pool.take()].tolist() == [0, 0, 0]
