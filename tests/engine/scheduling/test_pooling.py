"""Embeddings through the scheduler: every position counts once, whatever preempts, caches or cuts."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from engine.request import FinishReason, GenerateRequest, Pooling
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import Batch, Lane, LaneResult
from tests.engine.scheduling.rig import Rig, make_request


def embedding_request(name: str, prompt: list[int], pooling: Pooling) -> GenerateRequest:
    """Asks for the embedding of a prompt."""
    return GenerateRequest(request_id=name, prompt_ids=prompt, sampling=SamplingParams(max_tokens=0), pooling=pooling)


def states_of(lane: Lane) -> list[list[float]]:
    """The "hidden states" of a lane's rows: token and position."""
    return [[float(lane.sequence.token_ids[at]), float(at)] for at in range(lane.start, lane.stop)]


def expected(request: GenerateRequest) -> list[float]:
    """What a request must be answered with."""
    states = [[float(token), float(at)] for at, token in enumerate(request.prompt_ids)]
    chosen = states if request.pooling is Pooling.MEAN else states[-1:]
    found: list[float] = np.mean(chosen, axis=0).astype(np.float32).tolist()
    return found


class PoolingRig(Rig):
    """A rig whose device gives out hidden states."""

    def _apply(self) -> None:
        batch = self.in_flight.popleft()
        results = self.device.run(batch)
        self.events += self.scheduler.apply(batch, self._with_states(batch, results))

    def _with_states(self, batch: Batch, results: list[LaneResult]) -> list[LaneResult]:
        return [
            msgspec.structs.replace(result, pooled=self._sum(lane)) if lane.pools else result
            for lane, result in zip(batch.lanes, results, strict=True)
        ]

    def _sum(self, lane: Lane) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        states = states_of(lane)
        wanted = states if lane.sequence.request.pooling is Pooling.MEAN else states[-1:]
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.sum(wanted, axis=0, dtype=np.float64)
        return found

    def embedding(self, name: str) -> list[float]:
        """The one event's, which ends the request and holds no token."""
        (event,) = [event for event in self.events if event.request_id == name]
        assert not event.token_ids
        assert event.finish_reason is FinishReason.LENGTH
        assert event.embedding is not None
        found: list[float] = np.frombuffer(event.embedding, "<f4").tolist()
        return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_work_beside_it_changes_no_embedding(seed: int, overlap: bool) -> None:
    rng = random.Random(seed)
    rig = PoolingRig(num_pages=24, max_batch_tokens=rng.choice([8, 16, 40]), overlap=overlap)
    prefix = [rng.randrange(8, 50) for _ in range(12)]
    asked = []
    for number in range(12):
        prompt = prefix[: rng.randrange(13)] + [rng.randrange(8, 50) for _ in range(rng.randint(1, 30))]
        asked.append(embedding_request(f"e{number}", prompt, rng.choice(list(Pooling))))
        rig.scheduler.add(asked[-1])
        rig.scheduler.add(make_request(f"c{number}", [*prefix, number + 8], max_tokens=rng.randint(1, 20)))
        for _ in range(rng.randrange(4)):
            rig.step()
    rig.drain()
    for request in asked:
        assert rig.embedding(request.request_id) == expected(request)


def test_preemption_starts_the_sum_again() -> None:
    rig = PoolingRig(num_pages=12, max_num_seqs=2, max_batch_tokens=2)
    rig.scheduler.add(make_request("c", list(range(8, 28)), max_tokens=24, seed=2))
    while not rig.events:
        rig.step()
    asked = embedding_request("e", list(range(8, 32)), Pooling.MEAN)
    rig.scheduler.add(asked)
    rig.drain()
    assert rig.scheduler.stats.num_preemptions > 0
    assert rig.embedding("e") == expected(asked)


def test_the_last_token_may_come_after_cached_ones_and_the_mean_may_not() -> None:
    rig = PoolingRig()
    prompt = list(range(8, 40))
    for name, pooling in (("a", Pooling.MEAN), ("b", Pooling.LAST), ("c", Pooling.MEAN)):
        rig.scheduler.add(embedding_request(name, prompt, pooling))
        rig.drain()
    cached = {event.request_id: event.num_cached_tokens for event in rig.events}
    assert cached == {"a": 0, "b": 28, "c": 0}
    assert rig.embedding("a") == rig.embedding("c") == expected(embedding_request("a", prompt, Pooling.MEAN))
    assert rig.embedding("b") == expected(embedding_request("b", prompt, Pooling.LAST))
