"""Held contexts over a simulated device: a history is computed once, shared while it is the same, never mixed up."""

from __future__ import annotations

import pytest

from engine.contexts.commands import AppendTokens, ForkContext, OpenContext, TruncateContext
from engine.contexts.edits import Edit
from engine.errors import InvalidRequest, SequenceNotFound
from engine.request import FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from engine.scheduling import stepping
from tests.engine.scheduling.random_programs import RandomProgram
from tests.engine.scheduling.rig import EOS, SIZE, Rig
from tests.engine.scheduling.simulated_device import continuation


def open_context(rig: Rig, name: str, token_ids: list[int]) -> None:
    rig.obey(OpenContext(name))
    rig.obey(AppendTokens(name, token_ids))


def compute(rig: Rig, request_id: str, context_id: str, *, max_tokens: int = 0, seed: int = 3) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed)
    rig.scheduler.add(GenerateRequest(request_id=request_id, prompt_ids=[], context_id=context_id, sampling=sampling))


def expected(token_ids: list[int], max_tokens: int, seed: int = 3) -> list[int]:
    return continuation(token_ids, seed=seed, stream=0, max_tokens=max_tokens, stop=frozenset({EOS}))


def test_a_context_goes_on_from_its_own_pages() -> None:
    rig = Rig(prefix_cache=False)
    history = [1, 2, 3, 4, 5, 6]
    open_context(rig, "c", history)
    compute(rig, "first", "c", max_tokens=5)
    rig.drain()
    assert rig.tokens("first") == expected(history, 5)
    history += rig.tokens("first")
    compute(rig, "second", "c", max_tokens=5, seed=4)
    rig.drain()
    assert rig.tokens("second") == expected(history, 5, seed=4)
    assert rig.scheduler.stats.num_prefill_tokens == 6 + 1


def test_64_forks_compute_their_history_once_and_copy_only_where_they_part() -> None:
    rig = Rig(num_pages=400, max_num_seqs=64, max_batch_tokens=128)
    history = [index % 40 for index in range(90)]
    open_context(rig, "c", history)
    branches = [f"b{index}" for index in range(64)]
    rig.obey(ForkContext("c", branches))
    for index, name in enumerate(branches):
        compute(rig, name, name, max_tokens=6, seed=100 + index)
    rig.step()
    assert rig.kv.usage.num_used == 23
    rig.drain()
    for index, name in enumerate(branches):
        assert rig.tokens(name) == expected(history, 6, seed=100 + index)
    assert rig.scheduler.stats.num_prefill_tokens == 90 + 63
    copies = sum(len(lane.copies) for batch in rig.batches for lane in batch.lanes)
    assert copies <= 64


def test_forks_of_a_computed_context_hold_its_pages_until_they_write() -> None:
    rig = Rig(num_pages=100)
    open_context(rig, "c", list(range(10, 20)))
    compute(rig, "prefill", "c")
    rig.drain()
    assert rig.kv.usage.num_used == 3
    rig.obey(ForkContext("c", [f"b{index}" for index in range(64)]))
    assert rig.kv.usage.num_used == 3
    assert rig.scheduler.contexts.describe("b0").num_shared_pages == 3


def test_what_is_appended_to_a_fork_in_common_is_computed_once() -> None:
    rig = Rig(prefix_cache=False)
    open_context(rig, "c", [1, 2, 3, 4, 5])
    compute(rig, "prefill", "c")
    rig.drain()
    rig.obey(AppendTokens("c", [8, 9] * 6))
    rig.obey(ForkContext("c", ["d", "e"]))
    for name in ("c", "d", "e"):
        compute(rig, name, name, max_tokens=1, seed=ord(name))
    rig.drain()
    for name in ("c", "d", "e"):
        assert rig.tokens(name) == expected([1, 2, 3, 4, 5, *[8, 9] * 6], 1, seed=ord(name))
    assert rig.scheduler.stats.num_prefill_tokens == 5 + 12 + 2


def test_the_others_go_on_when_the_one_that_computes_for_them_is_aborted() -> None:
    rig = Rig(max_batch_tokens=8, prefix_cache=False)
    history = list(range(10, 40))
    open_context(rig, "c", history)
    rig.obey(ForkContext("c", ["d", "e"]))
    for name in ("c", "d", "e"):
        compute(rig, name, name, max_tokens=2)
    rig.step()
    rig.step()
    rig.scheduler.abort("c")
    rig.drain()
    assert rig.tokens("d") == rig.tokens("e") == expected(history, 2)
    assert rig.scheduler.stats.num_prefill_tokens < 2 * 30


def test_a_cut_frees_whole_pages_at_once() -> None:
    rig = Rig(prefix_cache=False)
    open_context(rig, "c", list(range(10, 10 + 5 * SIZE)))
    compute(rig, "prefill", "c")
    rig.drain()
    assert rig.kv.usage.num_used == 5
    rig.obey(TruncateContext("c", 2 * SIZE + 1))
    assert rig.kv.usage.num_used == 3
    rig.obey(TruncateContext("c", 2 * SIZE))
    assert rig.kv.usage.num_used == 2
    rig.obey(TruncateContext("c", 0))
    assert rig.kv.usage.num_free == rig.kv.num_pages


def test_idle_contexts_give_way_before_anyone_who_runs_and_the_longest_unused_first() -> None:
    rig = Rig(num_pages=12, prefix_cache=False)
    for name in ("old", "new"):
        open_context(rig, name, list(range(10, 10 + 4 * SIZE)))
        compute(rig, name, name)
        rig.drain()
    open_context(rig, "c", list(range(20, 20 + 6 * SIZE)))
    compute(rig, "c", "c", max_tokens=3)
    rig.drain()
    assert rig.scheduler.contexts.describe("old").residency == "tokens"
    assert rig.scheduler.contexts.describe("new").residency == "device"
    assert rig.scheduler.stats.num_preemptions == 0
    compute(rig, "again", "old", max_tokens=3)
    rig.drain()
    assert rig.tokens("again") == expected(list(range(10, 10 + 4 * SIZE)), 3)


def test_two_computations_on_one_context_are_refused() -> None:
    rig = Rig()
    open_context(rig, "c", [1, 2])
    compute(rig, "first", "c", max_tokens=4)
    with pytest.raises(InvalidRequest):
        compute(rig, "second", "c")
    rig.drain()
    assert rig.tokens("first") == expected([1, 2], 4)


def test_computing_on_an_unknown_context_is_refused_and_commands_to_it_are_ignored() -> None:
    rig = Rig()
    rig.obey(AppendTokens("nobody", [1]))
    rig.obey(ForkContext("nobody", ["child"]))
    rig.obey(TruncateContext("nobody", 0))
    assert rig.scheduler.release_contexts(["nobody"]) == []
    for name in ("nobody", "child"):
        with pytest.raises(SequenceNotFound):
            compute(rig, "r", name)
    assert not rig.scheduler.has_work


def test_a_context_released_while_it_is_computed_ends_that_with_an_error() -> None:
    rig = Rig()
    open_context(rig, "c", [1, 2])
    compute(rig, "r", "c", max_tokens=50)
    rig.step()
    events = rig.scheduler.release_contexts(["c"])
    assert [(event.request_id, event.finish_reason) for event in events] == [("r", FinishReason.ERROR)]
    assert events[0].error is not None
    assert events[0].error.kind == "SequenceNotFound"
    rig.drain()
    assert rig.kv.usage.num_used == 0


@pytest.mark.parametrize("seed", range(120))
def test_random_programs_with_forks_cuts_aborts_failures_and_pressure_keep_every_history_their_own(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # their generations are short: let callers be told of several proposals soon
        monkeypatch.setattr(stepping, "CONFIDENT", 2)
        monkeypatch.setattr(stepping, "BURST", 3)
    RandomProgram(seed).run()


@pytest.mark.parametrize("num_given", [1, 4, 9])
def test_a_generation_that_was_cut_off_goes_on_as_if_it_never_had_been(num_given: int) -> None:
    rig = Rig()
    history = [1, 2, 3, 4, 5, 6]
    whole = expected(history, 12)
    assert len(whole) > num_given
    open_context(rig, "c", [*history, *whole[:num_given]])
    sampling = SamplingParams(max_tokens=12, seed=3)
    request = GenerateRequest(request_id="r", prompt_ids=[], context_id="c", sampling=sampling, num_given=num_given)
    rig.scheduler.add(request)
    rig.drain()
    assert rig.tokens("r") == whole[num_given:]
    assert rig.scheduler.stats.num_prefill_tokens == len(history) + num_given


def test_contexts_decode_the_short_way_unless_something_is_hidden_from_their_tokens() -> None:
    rig = Rig(num_pages=200)
    history = [1, 2, 3, 4, 5, 6]
    for name in ("whole", "edited"):
        open_context(rig, name, history)
    rig.obey(TruncateContext("edited", len(history), (Edit(1, 3, len(history) - 1),)))
    rounds = 4
    for number in range(rounds):
        for name in ("whole", "edited"):
            compute(rig, f"{name} {number}", name, max_tokens=6)
        rig.drain()
        assert rig.tokens(f"whole {number}") == expected(history, 6)
        history += [*rig.tokens(f"whole {number}"), number + 1]
        for name in ("whole", "edited"):
            rig.obey(AppendTokens(name, [number + 1]))
    lanes = [lane for batch in rig.batches for lane in batch.lanes if lane.start >= lane.sequence.num_prompt]
    short = {lane.sequence.request.context_id for lane in lanes if lane.sequence.is_plain}
    assert {lane.sequence.request.context_id for lane in lanes} == {"whole", "edited"}
    assert short == {"whole"}
    assert all((lane.mask is None) == lane.sequence.is_plain for lane in lanes)
