"""Random work on several contexts at once, beside others: draws in lockstep, ends in between, failures, pressure."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from engine.contexts.commands import AppendTokens, ForkContext, OpenContext, TruncateContext
from engine.programs.binding import bind
from engine.request import FinishReason, GenerateRequest, ProgramSpec
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import EOS, SIZE, Rig, expected_tokens, make_request
from tests.engine.scheduling.simulated_device import VOCAB, next_token

SOURCE = "def sample(lanes):\n    return argmax(lanes[0].logits)\n"
PROGRAM = bind(SOURCE, {}, VOCAB)


@dataclass(slots=True)
class Owned:
    """What one context's owner believes of it."""

    token_ids: list[int] = field(default_factory=list)
    request: GenerateRequest | None = None


class RandomLanes:
    """One run, drawn from its seed.

    Attributes:
        tally: How often each thing happened.
    """

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.tally: Counter[str] = Counter()
        self._rig = Rig(
            num_pages=rng.choice([16, 24, 60]),
            max_num_seqs=rng.choice([3, 5, 9]),
            max_batch_tokens=rng.choice([9, 16, 64]),
            overlap=rng.random() < 0.7,
            prefix_cache=rng.random() < 0.7,
        )
        self._owned: dict[str, Owned] = {}
        self._plain: dict[str, GenerateRequest] = {}
        self._ids = 0

    def run(self, num_steps: int = 60) -> None:
        """Plays it and checks what came of it.

        Raises:
            AssertionError: A history or what follows from it is not as it must be, or pages are lost.
        """
        acts = [self._open, self._fork, self._join, self._leave, self._release, self._draw, self._draw]
        for _ in range(num_steps):
            self._rng.choice(acts)()
            if self._rng.random() < 0.03:
                self._rig.fail_next = True
            for _ in range(self._rng.randrange(4)):
                self._rig.step()
                self._take_ends()
        self._rig.fail_next = False
        self._rig.drain()
        self._take_ends()
        assert not [one for one in self._owned.values() if one.request is not None]
        for name, owned in self._owned.items():
            assert self._rig.scheduler.contexts[name].token_ids == owned.token_ids
        for name, request in self._plain.items():
            expected, got = expected_tokens(request), self._rig.tokens(name)
            assert got == (expected[: len(got)] if self._rig.finish(name) is FinishReason.ERROR else expected)
        self._rig.scheduler.release_contexts(list(self._owned))
        self._rig.scheduler.check_integrity()
        self._rig.kv.clear_cache()
        assert self._rig.kv.usage.num_free == self._rig.kv.num_pages
        self.tally["preemptions"] += self._rig.scheduler.stats.num_preemptions

    def _lanes(self, request: GenerateRequest) -> list[Owned]:
        return [self._owned[name] for name in (request.context_id, *request.lane_ids)]

    def _expected(self, request: GenerateRequest, count: int) -> list[int]:
        histories = [list(owned.token_ids) for owned in self._lanes(request)]
        drawn: list[int] = []
        while len(drawn) < count and EOS not in drawn:
            drawn.append(next_token([one for history in histories for one in history], request.sampling.seed or 0, 0))
            histories = [[*history, drawn[-1]] for history in histories]
        return drawn

    def _take_ends(self) -> None:
        for request in {one.request.request_id: one.request for one in self._owned.values() if one.request}.values():
            reason = self._rig.finish(request.request_id)
            if reason is None:
                continue
            got = self._rig.tokens(request.request_id)
            expected = self._expected(
                request, len(got) if reason is FinishReason.ERROR else request.sampling.max_tokens
            )
            assert got == expected
            self.tally[f"ended: {reason}"] += 1
            for owned in self._lanes(request):
                owned.token_ids, owned.request = owned.token_ids + got, None

    def _name(self) -> str:
        self._ids += 1
        return str(self._ids)

    def _idle(self) -> list[str]:
        return [name for name, owned in self._owned.items() if owned.request is None]

    def _open(self) -> None:
        if len(self._owned) < 10:
            name, rng = self._name(), self._rng
            token_ids = [rng.choice([0, 1])] * rng.randrange(12) + [rng.randrange(VOCAB) for _ in range(3)]
            self._owned[name] = Owned(token_ids)
            self._rig.obey(OpenContext(name))
            self._rig.obey(AppendTokens(name, token_ids))

    def _fork(self) -> None:
        idle = self._idle()
        if idle and len(self._owned) < 10:
            name, source = self._name(), self._rng.choice(idle)
            self._owned[name] = Owned(list(self._owned[source].token_ids))
            self._rig.obey(ForkContext(source, [name]))

    def _join(self) -> None:
        name = self._name()
        self._plain[name] = make_request(name, [self._rng.randrange(VOCAB), 5], max_tokens=self._rng.randint(0, 12))
        self._rig.scheduler.add(self._plain[name])

    def _draw(self) -> None:
        idle, rng = self._idle(), self._rng
        lanes = rng.sample(idle, min(len(idle), rng.choice([2, 2, 3])))
        num_new = rng.choice([1, 4, 9])
        pages = sum(-(-(len(self._owned[name].token_ids) + num_new) // SIZE) + 1 for name in lanes)
        if len(lanes) < 2 or pages > self._rig.kv.num_pages:
            return  # it would be refused
        request = GenerateRequest(
            request_id=self._name(),
            prompt_ids=[],
            context_id=lanes[0],
            lane_ids=lanes[1:],
            sampling=SamplingParams(max_tokens=num_new, seed=rng.randrange(99)),
            program=ProgramSpec(source=SOURCE),
            priority=rng.choice([0, 0, 1]),
        )
        for name in lanes:
            self._owned[name].request = request
        self._rig.scheduler.add(request, program=PROGRAM)
        self.tally["drawn together"] += 1

    def _leave(self) -> None:
        running = [owned.request for owned in self._owned.values() if owned.request is not None]
        if not running or self._rng.random() < 0.5:
            return
        request = self._rng.choice(running)
        if self._rng.random() < 0.5:
            self._rig.scheduler.abort(request.request_id)
        else:
            self._rig.scheduler.stop(request.request_id, 0)
        got = self._rig.tokens(request.request_id)
        assert got == self._expected(request, len(got))
        for name in (request.context_id, *request.lane_ids):
            owned = self._owned[name]
            owned.token_ids, owned.request = owned.token_ids + got, None
            self._rig.obey(TruncateContext(name, len(owned.token_ids)))
        self.tally["left"] += 1

    def _release(self) -> None:
        """Releases a context, perhaps one that is computed on: the others keep what they were given."""
        if not self._owned or self._rng.random() < 0.6:
            return
        name = self._rng.choice(list(self._owned))
        request = self._owned[name].request
        events = self._rig.scheduler.release_contexts([name])
        if request is not None:
            assert [(event.request_id, event.finish_reason) for event in events] == [
                (request.request_id, FinishReason.ERROR)
            ]
            got = self._rig.tokens(request.request_id)
            assert got == self._expected(request, len(got))
            for owned in self._lanes(request):
                owned.token_ids, owned.request = owned.token_ids + got, None
            self.tally["released in use"] += 1
        del self._owned[name]
