"""A scheduler over a simulated device, stepped by hand."""

from __future__ import annotations

import random
from collections import Counter, deque

from engine.contexts.commands import ContextCommand, ReleaseContexts
from engine.kv.manager import KVManager
from engine.request import ErrorReport, FinishReason, GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import Batch
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Sequence
from tests.engine.scheduling.simulated_device import SimulatedDevice, continuation

SIZE = 4
PAGE_KIB = 3
EOS = 7


class Rig:
    """A scheduler, its pool and its device, stepped with or without overlap.

    Attributes:
        fail_next: The next step to finish fails instead.
        num_failed: Steps that failed.
        now: The meter's clock, in ms; goes on by a random bit before each step and each command.
        held: Page·ms of tables, by the salt that begins an account's name, up to the last `/`; counted page by page.
    """

    def __init__(
        self,
        *,
        num_pages: int = 64,
        max_num_seqs: int = 8,
        max_batch_tokens: int = 16,
        max_waiting: int = 1000,
        overlap: bool = True,
        prefix_cache: bool = True,
        seconds_per_token: float = 1e-3,
        host_pages: int = 0,
    ) -> None:
        self.now = 0
        self.held: Counter[str] = Counter()
        self._time = random.Random(num_pages)
        self._seconds_per_token = seconds_per_token
        self.kv = KVManager(
            num_pages=num_pages,
            page_size=SIZE,
            fingerprint="sim",
            kv_dtype="ids",
            prefix_cache=prefix_cache,
            page_kib=PAGE_KIB,
            clock=lambda: self.now,
        )
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            max_waiting=max_waiting,
            eos_token_ids=(EOS,),
            draw_seed=lambda: 1,
            host_pages=host_pages,
        )
        self.device = SimulatedDevice(num_pages, SIZE, max_num_seqs, host_pages)
        self.overlap = overlap
        self.in_flight: deque[Batch] = deque()
        self.events: list[TokenEvent] = []
        self.batches: list[Batch] = []
        self.fail_next = False
        self.num_failed = 0
        self._failed: set[Sequence] = set()

    def pass_time(self, ms: int) -> None:
        """Lets time pass, and counts what is held meanwhile without any of the meter's bookkeeping."""
        pages: dict[str, set[int]] = {}
        for table in self.scheduler.tables():
            pages.setdefault(group_of(table.payer.account), set()).update(table.pages)
        for copy in self.scheduler.contexts.hosted():
            self.held[group_of(copy.payer.account)] += len(copy.pages) * ms
        self.held.update({group: len(held) * ms for group, held in pages.items()})
        self.held["cached"] += self.kv.usage.num_cached * ms
        self.now += ms

    def check_charges(self) -> None:
        """Raises AssertionError unless every group of accounts that share pages was charged what it held."""
        self.kv.meter.tick()
        charged: Counter[str] = Counter()
        for charge in self.kv.meter.charges():
            charged[group_of(charge.account)] += charge.total_kib_ms
        charged["cached"] = self.kv.meter.overhead_kib_ms
        for group, held in self.held.items():
            assert charged[group] == held * PAGE_KIB, group
        assert charged.total() == self.kv.meter.resident_kib_ms

    def step(self) -> Batch:
        self.pass_time(self._time.choice([0, 1, 7]))
        self.events += self.scheduler.tend()
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        self.device.stage(batch)
        self.in_flight.append(batch)
        while len(self.in_flight) > self.overlap:
            self._apply()
        self.scheduler.check_integrity()
        return batch

    def obey(self, command: ContextCommand) -> None:
        assert not isinstance(command, ReleaseContexts)
        self.pass_time(self._time.choice([0, 0, 3]))
        self.scheduler.contexts.obey(command)

    def drain(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if self.scheduler.has_work:
                self.step()
            elif self.in_flight:
                self._apply()  # which may give somebody work again
            else:
                break
        assert not self.scheduler.has_work
        self.scheduler.check_integrity()
        self.check_charges()

    def _apply(self) -> None:
        batch = self.in_flight.popleft()
        if self.fail_next and batch.lanes:
            self.fail_next = False
            self.num_failed += 1
            self._failed |= {member for lane in batch.lanes for member in lane.sequence.members}
            self.events += self.scheduler.fail(batch, ErrorReport("EngineError", "broken"))
        else:
            results = self.device.run(batch, void=self._failed)
            self.events += self.scheduler.apply(batch, results, batch.num_tokens * self._seconds_per_token)

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


def group_of(account: str) -> str:
    """Accounts of one group share pages, those of others never do: the salt is the first part of their names."""
    return "salt " + account.partition("/")[0]


def make_request(
    name: str,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    seed: int = 3,
    salt: str = "",
    account: str = "",
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
        account=f"{salt}/{account}",
        priority=priority,
        prompt_logprobs=prompt_logprobs,
    )


def expected_tokens(request: GenerateRequest, index: int = 0) -> list[int]:
    assert request.sampling.seed is not None
    return continuation(
        request.prompt_ids,
        seed=request.sampling.seed,
        stream=index,
        max_tokens=request.sampling.max_tokens,
        stop=frozenset({EOS}),
    )
