"""The scheduler over a simulated device: whatever the order of things, every sequence yields its own tokens."""

from __future__ import annotations

import random
from collections import deque

import pytest

from engine.errors import QueueFull
from engine.kv.manager import KVManager
from engine.request import ErrorReport, FinishReason, GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import Batch
from engine.scheduling.scheduler import Scheduler
from tests.engine.scheduling.simulated_device import VOCAB, SimulatedDevice, continuation

SIZE = 4
EOS = 7


class Rig:
    """A scheduler, its pool and its device, stepped with or without overlap."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        max_num_seqs: int = 8,
        max_batch_tokens: int = 16,
        max_waiting: int = 1000,
        overlap: bool = True,
        prefix_cache: bool = True,
    ) -> None:
        self.kv = KVManager(
            num_pages=num_pages, page_size=SIZE, fingerprint="sim", kv_dtype="ids", prefix_cache=prefix_cache
        )
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            max_waiting=max_waiting,
            eos_token_ids=(EOS,),
            draw_seed=lambda: 1,
        )
        self.device = SimulatedDevice(num_pages, SIZE, max_num_seqs)
        self.overlap = overlap
        self.in_flight: deque[Batch] = deque()
        self.events: list[TokenEvent] = []
        self.batches: list[Batch] = []

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        self.in_flight.append(batch)
        while len(self.in_flight) > self.overlap:
            self._apply()
        self.scheduler.check_integrity()
        return batch

    def drain(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            self.step()
        while self.in_flight:
            self._apply()
        assert not self.scheduler.has_work
        self.scheduler.check_integrity()

    def _apply(self) -> None:
        batch = self.in_flight.popleft()
        self.events += self.scheduler.apply(batch, self.device.run(batch))

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [
            token
            for event in self.events
            if (event.request_id, event.index) == (request_id, index)
            for token in event.token_ids
        ]

    def finish(self, request_id: str, index: int = 0) -> FinishReason | None:
        ends = [
            event.finish_reason
            for event in self.events
            if (event.request_id, event.index) == (request_id, index) and event.finish_reason is not None
        ]
        assert len(ends) <= 1
        return ends[0] if ends else None


def _request(
    name: str,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    seed: int = 3,
    salt: str = "",
    priority: int = 0,
    prompt_logprobs: int | None = None,
) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=seed)
    return GenerateRequest(
        request_id=name,
        prompt_ids=prompt,
        sampling=params,
        n=n,
        salt=salt,
        priority=priority,
        prompt_logprobs=prompt_logprobs,
    )


def _expected(request: GenerateRequest, index: int = 0) -> list[int]:
    assert request.sampling.seed is not None
    return continuation(
        request.prompt_ids,
        seed=request.sampling.seed,
        stream=index,
        max_tokens=request.sampling.max_tokens,
        stop=frozenset({EOS}),
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_one_request_yields_its_continuation_and_ends(overlap: bool) -> None:
    rig = Rig(overlap=overlap)
    request = _request("a", [1, 2, 3, 4, 5], max_tokens=20)
    rig.scheduler.add(request)
    rig.drain()
    assert rig.tokens("a") == _expected(request)
    assert rig.finish("a") is not None
    assert rig.kv.usage.num_used == 0


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_lanes() -> None:
    rig = Rig(max_batch_tokens=8)
    short, long = _request("short", [1, 2], max_tokens=12, seed=5), _request("long", list(range(40)), max_tokens=4)
    rig.scheduler.add(short)
    rig.step()
    rig.scheduler.add(long)
    rig.drain()
    assert rig.tokens("short") == _expected(short)
    assert rig.tokens("long") == _expected(long)
    mixed = [batch for batch in rig.batches if len(batch.lanes) > 1]
    assert any(batch.lanes[0].num_tokens == 1 and batch.lanes[1].num_tokens == 7 for batch in mixed)
    assert all(batch.num_tokens <= 8 for batch in rig.batches)


def test_n_continuations_compute_their_prompt_once() -> None:
    rig = Rig()
    request = _request("a", list(range(10)), n=4, max_tokens=6)
    rig.scheduler.add(request)
    rig.drain()
    for index in range(4):
        assert rig.tokens("a", index) == _expected(request, index)
    prompt_tokens = sum(
        max(0, min(lane.stop, 10) - lane.start) for batch in rig.batches for lane in batch.lanes if lane.start < 10
    )
    assert prompt_tokens == 10 + 3


def test_continuations_go_on_when_the_first_of_them_is_stopped_during_the_prompt() -> None:
    rig = Rig(max_batch_tokens=8)
    request = _request("a", list(range(20)), n=3, max_tokens=6)
    rig.scheduler.add(request)
    rig.step()
    rig.scheduler.stop("a", 0)
    rig.drain()
    assert rig.tokens("a", 0) == []
    for index in (1, 2):
        assert rig.tokens("a", index) == _expected(request, index)


def test_a_repeated_prompt_comes_from_the_cache_and_yields_the_same() -> None:
    rig = Rig()
    request = _request("a", list(range(13)))
    rig.scheduler.add(request)
    rig.drain()
    again = _request("b", list(range(13)))
    rig.scheduler.add(again)
    rig.drain()
    first = next(event for event in rig.events if event.request_id == "b")
    assert first.num_cached_tokens == 12
    assert rig.tokens("b") == rig.tokens("a") == _expected(request)
    assert rig.scheduler.stats.num_cached_tokens == 12


def test_an_aborted_request_leaves_its_computed_pages_to_the_cache_and_no_event() -> None:
    rig = Rig()
    rig.scheduler.add(_request("a", list(range(13)), max_tokens=50))
    for _ in range(3):
        rig.step()
    before = len(rig.events)
    rig.scheduler.abort("a")
    assert rig.kv.usage.num_used == 0
    rig.drain()
    assert len(rig.events) == before
    rig.scheduler.add(_request("b", list(range(13))))
    rig.drain()
    assert next(event for event in rig.events if event.request_id == "b").num_cached_tokens == 12


def test_under_pressure_the_youngest_yields_and_still_yields_its_own_tokens() -> None:
    rig = Rig(num_pages=8, prefix_cache=False)
    requests = [_request(name, [index, 1, 2, 3], max_tokens=20, seed=40 + index) for index, name in enumerate("abc")]
    for request in requests:
        rig.scheduler.add(request)
    rig.drain()
    assert rig.scheduler.stats.num_preemptions > 0
    for request in requests:
        assert rig.tokens(request.request_id) == _expected(request)


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    rig = Rig(max_waiting=2)
    rig.scheduler.add(_request("a", [1]))
    with pytest.raises(QueueFull) as caught:
        rig.scheduler.add(_request("b", [1], n=2))
    assert caught.value.num_waiting == 1
    rig.drain()
    assert rig.tokens("b") == []


def test_lower_priority_values_enter_first() -> None:
    rig = Rig(max_num_seqs=1)
    rig.scheduler.add(_request("later", [1, 2], priority=5))
    rig.scheduler.add(_request("sooner", [1, 2], priority=-5))
    rig.drain()
    assert rig.events[0].request_id == "sooner"


def test_a_failed_step_ends_its_own_sequences_only() -> None:
    rig = Rig(max_batch_tokens=8, overlap=False)
    rig.scheduler.add(_request("a", [1] * 8))
    batch = rig.scheduler.schedule()
    waiting = _request("b", [2] * 8)
    rig.scheduler.add(waiting)
    events = rig.scheduler.fail(batch, ErrorReport("EngineError", "broken"))
    assert [(event.request_id, event.finish_reason) for event in events] == [("a", FinishReason.ERROR)]
    rig.drain()
    assert rig.tokens("b") == _expected(waiting)


def test_prompt_logprobs_cover_every_position_even_when_the_prompt_is_cached() -> None:
    rig = Rig(max_batch_tokens=8)
    rig.scheduler.add(_request("a", list(range(20))))
    rig.drain()
    rig.scheduler.add(_request("b", list(range(20)), prompt_logprobs=0))
    rig.drain()
    first = next(event for event in rig.events if event.request_id == "b")
    assert first.prompt_logprobs is not None
    assert [entry.logprob for entry in first.prompt_logprobs] == [float(-position) for position in range(19)]
    assert first.num_cached_tokens == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_for_no_tokens_scores_its_prompt_and_ends(overlap: bool) -> None:
    rig = Rig(max_batch_tokens=8, overlap=overlap)
    rig.scheduler.add(_request("a", list(range(20)), max_tokens=0, prompt_logprobs=0))
    rig.scheduler.add(_request("b", [5], max_tokens=0, n=2))
    rig.drain()
    scored = [event for event in rig.events if event.request_id == "a"]
    assert len(scored) == 1
    assert (scored[0].token_ids, scored[0].finish_reason) == ([], FinishReason.LENGTH)
    assert scored[0].prompt_logprobs is not None
    assert len(scored[0].prompt_logprobs) == 19
    assert [event.index for event in rig.events if event.request_id == "b"] == [0, 1]
    assert rig.scheduler.stats.num_decode_tokens == 0


@pytest.mark.parametrize("seed", range(250))
def test_random_histories_of_joins_leaves_aborts_and_pressure_end_with_an_intact_pool(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(
        num_pages=rng.choice([10, 16, 40]),
        max_num_seqs=rng.choice([2, 5, 9]),
        max_batch_tokens=rng.choice([9, 16, 64]),
        overlap=rng.random() < 0.7,
        prefix_cache=rng.random() < 0.8,
    )
    requests: dict[str, GenerateRequest] = {}
    aborted: set[tuple[str, int]] = set()
    for count in range(40):
        if rng.random() < 0.5:
            prompt = [rng.choice([0, 1])] * rng.randint(1, 18) + [rng.randrange(VOCAB)]
            request = _request(
                str(count),
                prompt,
                max_tokens=rng.randint(0, 20),
                n=rng.choice([1, 1, 1, 3]),
                seed=rng.randrange(99),
                salt=rng.choice(["", "other"]),
                priority=rng.choice([0, 0, 1]),
                prompt_logprobs=rng.choice([None, None, 0]),
            )
            requests[request.request_id] = request
            rig.scheduler.add(request)
        if requests and rng.random() < 0.15:
            name = rng.choice(list(requests))
            index = rng.choice([None, 0])
            if index is None:
                rig.scheduler.abort(name)
            else:
                rig.scheduler.stop(name, index)
            aborted |= {(name, each) for each in range(requests[name].n) if index is None or each == index}
        rig.step()
    rig.drain()
    for name, request in requests.items():
        for index in range(request.n):
            expected = _expected(request, index)
            got = rig.tokens(name, index)
            if (name, index) in aborted:
                assert got == expected[: len(got)]
            else:
                assert got == expected
        if request.prompt_logprobs is not None and (name, 0) not in aborted:
            first = next(event for event in rig.events if (event.request_id, event.index) == (name, 0))
            assert first.prompt_logprobs is not None
            found = [entry.logprob for entry in first.prompt_logprobs]
            assert found == [float(-position) for position in range(len(request.prompt_ids) - 1)]
    rig.kv.clear_cache()
    assert rig.kv.usage.num_free == rig.kv.num_pages
