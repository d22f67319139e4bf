"""The scheduler over a simulated device: whatever the order of things, every sequence yields its own tokens."""

from __future__ import annotations

import pytest

from engine.errors import QueueFull
from engine.request import ErrorReport, FinishReason
from tests.engine.scheduling.random_schedules import RandomSchedule
from tests.engine.scheduling.rig import Rig, expected_tokens, make_request


@pytest.mark.parametrize("overlap", [False, True])
def test_one_request_yields_its_continuation_and_ends(overlap: bool) -> None:
    rig = Rig(overlap=overlap)
    request = make_request("a", [1, 2, 3, 4, 5], max_tokens=20)
    rig.scheduler.add(request)
    rig.drain()
    assert rig.tokens("a") == expected_tokens(request)
    assert rig.finish("a") is not None
    assert rig.kv.usage.num_used == 0


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_lanes() -> None:
    rig = Rig(max_batch_tokens=8)
    short, long = (
        make_request("short", [1, 2], max_tokens=12, seed=5),
        make_request("long", list(range(40)), max_tokens=4),
    )
    rig.scheduler.add(short)
    rig.step()
    rig.scheduler.add(long)
    rig.drain()
    assert rig.tokens("short") == expected_tokens(short)
    assert rig.tokens("long") == expected_tokens(long)
    mixed = [batch for batch in rig.batches if len(batch.lanes) > 1]
    assert any(batch.lanes[0].num_tokens == 1 and batch.lanes[1].num_tokens == 7 for batch in mixed)
    assert all(batch.num_tokens <= 8 for batch in rig.batches)


def test_n_continuations_compute_their_prompt_once() -> None:
    rig = Rig()
    request = make_request("a", list(range(10)), n=4, max_tokens=6)
    rig.scheduler.add(request)
    rig.drain()
    for index in range(4):
        assert rig.tokens("a", index) == expected_tokens(request, index)
    prompt_tokens = sum(
        max(0, min(lane.stop, 10) - lane.start) for batch in rig.batches for lane in batch.lanes if lane.start < 10
    )
    assert prompt_tokens == 10 + 3


def test_continuations_go_on_when_the_first_of_them_is_stopped_during_the_prompt() -> None:
    rig = Rig(max_batch_tokens=8)
    request = make_request("a", list(range(20)), n=3, max_tokens=6)
    rig.scheduler.add(request)
    rig.step()
    rig.scheduler.stop("a", 0)
    rig.drain()
    assert rig.tokens("a", 0) == []
    for index in (1, 2):
        assert rig.tokens("a", index) == expected_tokens(request, index)


def test_a_repeated_prompt_comes_from_the_cache_and_yields_the_same() -> None:
    rig = Rig()
    request = make_request("a", list(range(13)))
    rig.scheduler.add(request)
    rig.drain()
    again = make_request("b", list(range(13)))
    rig.scheduler.add(again)
    rig.drain()
    first = next(event for event in rig.events if event.request_id == "b")
    assert first.num_cached_tokens == 12
    assert rig.tokens("b") == rig.tokens("a") == expected_tokens(request)
    assert rig.scheduler.stats.num_cached_tokens == 12


def test_an_aborted_request_leaves_its_computed_pages_to_the_cache_and_no_event() -> None:
    rig = Rig()
    rig.scheduler.add(make_request("a", list(range(13)), max_tokens=50))
    for _ in range(3):
        rig.step()
    before = len(rig.events)
    rig.scheduler.abort("a")
    assert rig.kv.usage.num_used == 0
    rig.drain()
    assert len(rig.events) == before
    rig.scheduler.add(make_request("b", list(range(13))))
    rig.drain()
    assert next(event for event in rig.events if event.request_id == "b").num_cached_tokens == 12


def test_under_pressure_the_youngest_yields_and_still_yields_its_own_tokens() -> None:
    rig = Rig(num_pages=8, prefix_cache=False)
    requests = [
        make_request(name, [index, 1, 2, 3], max_tokens=20, seed=40 + index) for index, name in enumerate("abc")
    ]
    for request in requests:
        rig.scheduler.add(request)
    rig.drain()
    assert rig.scheduler.stats.num_preemptions > 0
    for request in requests:
        assert rig.tokens(request.request_id) == expected_tokens(request)


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    rig = Rig(max_waiting=2)
    rig.scheduler.add(make_request("a", [1]))
    with pytest.raises(QueueFull) as caught:
        rig.scheduler.add(make_request("b", [1], n=2))
    assert caught.value.num_waiting == 1
    rig.drain()
    assert rig.tokens("b") == []


def test_lower_priority_values_enter_first() -> None:
    rig = Rig(max_num_seqs=1)
    rig.scheduler.add(make_request("later", [1, 2], priority=5))
    rig.scheduler.add(make_request("sooner", [1, 2], priority=-5))
    rig.drain()
    assert rig.events[0].request_id == "sooner"


def test_a_failed_step_ends_its_own_sequences_only() -> None:
    rig = Rig(max_batch_tokens=8, overlap=False)
    rig.scheduler.add(make_request("a", [1] * 8))
    batch = rig.scheduler.schedule()
    waiting = make_request("b", [2] * 8)
    rig.scheduler.add(waiting)
    events = rig.scheduler.fail(batch, ErrorReport("EngineError", "broken"))
    assert [(event.request_id, event.finish_reason) for event in events] == [("a", FinishReason.ERROR)]
    rig.drain()
    assert rig.tokens("b") == expected_tokens(waiting)


def test_prompt_logprobs_cover_every_position_even_when_the_prompt_is_cached() -> None:
    rig = Rig(max_batch_tokens=8)
    rig.scheduler.add(make_request("a", list(range(20))))
    rig.drain()
    rig.scheduler.add(make_request("b", list(range(20)), prompt_logprobs=0))
    rig.drain()
    first = next(event for event in rig.events if event.request_id == "b")
    assert first.prompt_logprobs is not None
    assert [entry.logprob for entry in first.prompt_logprobs] == [float(-position) for position in range(19)]
    assert first.num_cached_tokens == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_for_no_tokens_scores_its_prompt_and_ends(overlap: bool) -> None:
    rig = Rig(max_batch_tokens=8, overlap=overlap)
    rig.scheduler.add(make_request("a", list(range(20)), max_tokens=0, prompt_logprobs=0))
    rig.scheduler.add(make_request("b", [5], max_tokens=0, n=2))
    rig.drain()
    scored = [event for event in rig.events if event.request_id == "a"]
    assert len(scored) == 1
    assert (scored[0].token_ids, scored[0].finish_reason) == ([], FinishReason.LENGTH)
    assert scored[0].prompt_logprobs is not None
    assert len(scored[0].prompt_logprobs) == 19
    assert [event.index for event in rig.events if event.request_id == "b"] == [0, 1]
    assert rig.scheduler.stats.num_decode_tokens == 0


@pytest.mark.parametrize("seed", range(250))
def test_random_schedules_of_joins_leaves_aborts_failures_pressure_and_forks_end_with_an_intact_pool(
    seed: int,
) -> None:
    RandomSchedule(seed).run()
