"""Random schedules of joins, leaves, aborts, failing steps, pressure and forks, each checked to its end.

`python -m tests.engine.scheduling.random_schedules` runs 10,000 of them and says how often each thing happened; the
suite runs some.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from engine.request import FinishReason, GenerateRequest
from tests.engine.scheduling.rig import Rig, expected_tokens, make_request
from tests.engine.scheduling.simulated_device import VOCAB

KINDS = ("joins", "forks", "aborts", "stops", "failed steps", "preemptions", "cached tokens", "copied pages", "steps")


class RandomSchedule:
    """One schedule, drawn from its seed.

    Attributes:
        tally: How often each of `KINDS` happened.
    """

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.tally: Counter[str] = Counter()
        self._rig = Rig(
            num_pages=rng.choice([10, 16, 40]),
            max_num_seqs=rng.choice([2, 5, 9]),
            max_batch_tokens=rng.choice([9, 16, 64]),
            overlap=rng.random() < 0.7,
            prefix_cache=rng.random() < 0.8,
        )
        self._requests: dict[str, GenerateRequest] = {}
        self._ended: set[tuple[str, int]] = set()
        """Sequences that somebody ended before their time."""

    def run(self) -> None:
        """Plays the schedule and checks what came of it.

        Raises:
            AssertionError: A sequence's tokens are not its own, or pages are lost.
        """
        for count in range(40):
            if self._rng.random() < 0.5:
                self._join(str(count))
            if self._requests and self._rng.random() < 0.15:
                self._leave()
            if self._rng.random() < 0.02:
                self._rig.fail_next = True
            self._rig.step()
        self._rig.drain()
        self._count()
        for request in self._requests.values():
            self._check(request)
        self._rig.kv.clear_cache()
        assert self._rig.kv.usage.num_free == self._rig.kv.num_pages

    def _join(self, name: str) -> None:
        rng = self._rng
        request = make_request(
            name,
            [rng.choice([0, 1])] * rng.randint(1, 18) + [rng.randrange(VOCAB)],
            max_tokens=rng.randint(0, 20),
            n=rng.choice([1, 1, 1, 3]),
            seed=rng.randrange(99),
            salt=rng.choice(["", "other"]),
            account=rng.choice(["one", "two", "three"]),
            priority=rng.choice([0, 0, 1]),
            prompt_logprobs=rng.choice([None, None, 0]),
        )
        self._requests[name] = request
        self._rig.scheduler.add(request)
        self.tally["joins"] += 1

    def _leave(self) -> None:
        name = self._rng.choice(list(self._requests))
        if self._rng.random() < 0.5:
            self._rig.scheduler.abort(name)
            self._ended |= {(name, index) for index in range(self._requests[name].n)}
            self.tally["aborts"] += 1
        else:
            self._rig.scheduler.stop(name, 0)
            self._ended.add((name, 0))
            self.tally["stops"] += 1

    def _count(self) -> None:
        stats = self._rig.scheduler.stats
        lanes = [lane for batch in self._rig.batches for lane in batch.lanes]
        self.tally["preemptions"] += stats.num_preemptions
        self.tally["cached tokens"] += stats.num_cached_tokens
        self.tally["failed steps"] += self._rig.num_failed
        self.tally["copied pages"] += sum(len(lane.copies) for lane in lanes)
        self.tally["forks"] += len({id(lane.sequence) for lane in lanes if lane.sequence.leader is not None})
        self.tally["steps"] += len(self._rig.batches)

    def _check(self, request: GenerateRequest) -> None:
        name = request.request_id
        for index in range(request.n):
            expected, got = expected_tokens(request, index), self._rig.tokens(name, index)
            failed = self._rig.finish(name, index) is FinishReason.ERROR
            if failed or (name, index) in self._ended:
                assert got == expected[: len(got)]
            else:
                assert got == expected
        scored = request.prompt_logprobs is not None and (name, 0) not in self._ended
        if scored and self._rig.finish(name, 0) is not FinishReason.ERROR:
            first = next(event for event in self._rig.events if (event.request_id, event.index) == (name, 0))
            assert first.prompt_logprobs is not None
            found = [entry.logprob for entry in first.prompt_logprobs]
            assert found == [float(-position) for position in range(len(request.prompt_ids) - 1)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.scheduling.random_schedules", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="schedules")
    parser.add_argument("--first", type=int, default=0, help="seed of the first; the others follow")
    options = parser.parse_args(argv)
    start, tally = time.monotonic(), Counter[str]()
    for seed in range(options.first, options.first + options.count):
        schedule = RandomSchedule(seed)
        try:
            schedule.run()
        except Exception:
            print(f"seed {seed} failed", flush=True)
            raise
        tally += schedule.tally
    print(f"{options.count} schedules in {time.monotonic() - start:.0f} s, every pool intact")
    print(", ".join(f"{tally[kind]} {kind}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
