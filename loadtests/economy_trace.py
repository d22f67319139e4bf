"""A day of three tenants in a pool that is too small for them, on the real scheduler and a clock of its own.

Sessions of a tenant compute a turn, then wait for a tool, a person or nobody: each wait ends with a next turn, or
never. Who knows the chance of that may say so by a lease. One tenant says what is true, one says ten times as much as
is true, one says nothing. What a policy is worth is told by how many tokens have to be computed again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.contexts.commands import AppendTokens, OpenContext, RetainContext
from engine.contexts.held import HeldContext
from engine.kv.manager import KVManager
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.batch import LaneResult
from engine.scheduling.scheduler import Scheduler

Policy = Literal["value", "lru", "quota"]
"""What gives way first: the least expected saving, as the engine does it; the longest unused; or the longest unused of
the account that holds most."""

PAGE_SIZE = 16
PAGE_KIB = 360
TURN_TOKENS = 48
ANSWER_TOKENS = 16
WAIT_S = 45.0
"""Mean time until the next turn of a session that has one."""
ARRIVAL_S = 6.0
"""Time between new sessions of one tenant."""
HOLD_S = 120.0
"""How long a session that nobody will continue is kept by its owner, who cannot know."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """How one tenant's sessions behave.

    Attributes:
        name: Its account.
        chances: Of a next turn, one drawn for each wait.
        claim: What it says a chance of that size is; None for saying nothing.
    """

    name: str
    chances: Sequence[float]
    claim: Callable[[float], float] | None


HONEST = Tenant("honest", (0.05, 0.4, 0.95), lambda chance: chance)
BOASTFUL = Tenant("over-claiming", (0.1,), lambda chance: min(1.0, 10 * chance))
TRUTHFUL = Tenant("over-claiming", (0.1,), lambda chance: chance)
SILENT = Tenant("no hints", (0.05, 0.4, 0.95), None)


@dataclass(slots=True)
class Session:
    """One conversation.

    Attributes:
        tenant: Whose.
        name: Of its context.
        rng: Draws its own life, whatever happens to others.
        chance: Of a next turn after the wait that it is in.
        is_over: Nobody will continue it.
    """

    tenant: Tenant
    name: str
    rng: random.Random
    chance: float = 0.0
    is_over: bool = False


@dataclass(slots=True)
class Outcome:
    """What one policy came to, by tenant.

    Attributes:
        reused: Tokens of histories that were there when they were used again.
        recomputed: Tokens of histories that were not.
        idle_page_s: Pages of idle contexts times seconds.
    """

    reused: Counter[str] = field(default_factory=Counter)
    recomputed: Counter[str] = field(default_factory=Counter)
    idle_page_s: Counter[str] = field(default_factory=Counter)

    def share_recomputed(self, tenant: str) -> float:
        """Of a tenant's tokens that were used again, those that had to be computed again."""
        return self.recomputed[tenant] / max(1, self.reused[tenant] + self.recomputed[tenant])


class Trace:
    """The tenants' day, played against one policy.

    Args:
        tenants: Who is there.
        num_pages: Pages in the pool.
        policy: What gives way first.
        seed: Draws the day; the same for every policy.
        num_sessions: Sessions of each tenant.
    """

    def __init__(
        self, tenants: Sequence[Tenant], num_pages: int, policy: Policy, *, seed: int = 0, num_sessions: int = 300
    ) -> None:
        self.outcome = Outcome()
        self.peak_pages = 0
        self._now_ms = 0
        self._kv = KVManager(
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            fingerprint="trace",
            kv_dtype="none",
            page_kib=PAGE_KIB,
            clock=lambda: self._now_ms,
        )
        self._scheduler = Scheduler(
            self._kv,
            max_num_seqs=16,
            max_batch_tokens=8192,
            max_waiting=4096,
            eos_token_ids=(),
            draw_seed=lambda: 0,
        )
        _set_policy(self._scheduler, policy)
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Session]] = []
        rng = random.Random(seed)
        for tenant in tenants:
            for number in range(num_sessions):
                session = Session(tenant, f"{tenant.name} {number}", random.Random(f"{seed} {tenant.name} {number}"))
                self._plan(rng.uniform(0, ARRIVAL_S * num_sessions), session)

    def run(self) -> Outcome:
        """Plays the day to its end."""
        while self._due:
            at_s, _, session = heapq.heappop(self._due)
            self._pass_time(round(at_s * 1000))
            if session.is_over:
                self._scheduler.release_contexts([session.name])
                del self._sessions[session.name]
            else:
                self._turn(session)
        self._scheduler.check_integrity()
        return self.outcome

    def _plan(self, at_s: float, session: Session) -> None:
        heapq.heappush(self._due, (at_s, next(self._numbers), session))

    def _pass_time(self, now_ms: int) -> None:
        for session in self._sessions.values():
            table = self._scheduler.contexts[session.name].table
            if table is not None:
                pages = len(table.pages)
                self.outcome.idle_page_s[session.tenant.name] += pages * (now_ms - self._now_ms) // 1000
        self._now_ms = max(self._now_ms, now_ms)
        self._kv.meter.tick()
        self._scheduler.tend()

    def _turn(self, session: Session) -> None:
        """One turn, and the wait after it."""
        rng, tenant, is_new = session.rng, session.tenant, session.name not in self._sessions
        num_new = TURN_TOKENS
        if is_new:
            self._sessions[session.name] = session
            self._scheduler.contexts.obey(OpenContext(session.name, tenant.name, tenant.name))
            num_new = round(min(4000.0, max(200.0, rng.lognormvariate(6.8, 0.7))))
        num_before = len(self._scheduler.contexts[session.name].token_ids)
        tokens = [rng.randrange(32_000) for _ in range(num_new)]
        self._scheduler.contexts.obey(AppendTokens(session.name, tokens))
        num_held = self._compute(session.name)
        self.peak_pages = max(self.peak_pages, self._kv.usage.num_used)
        if not is_new:
            num_there = num_before - 1  # the K and V of an answer's last token are never computed with it
            self.outcome.reused[tenant.name] += min(num_held, num_there)
            self.outcome.recomputed[tenant.name] += max(0, num_there - num_held)
        self._wait(session)

    def _wait(self, session: Session) -> None:
        rng, tenant = session.rng, session.tenant
        session.chance = rng.choice(tenant.chances)
        if tenant.claim is not None:
            claim = tenant.claim(session.chance)
            command = RetainContext(
                session.name, f"{session.name} {self._now_ms}", round(HOLD_S * 1000), 1 << 30, claim, "tokens"
            )
            self._scheduler.contexts.obey(command)
        session.is_over = rng.random() >= session.chance
        delay_s = HOLD_S if session.is_over else min(HOLD_S, rng.expovariate(1 / WAIT_S))
        self._plan(self._now_ms / 1000 + delay_s, session)

    def _compute(self, name: str) -> int:
        """Computes a turn in no time; returns how many tokens were there already."""
        sampling = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(
            request_id=f"{name} {self._now_ms}", prompt_ids=[], context_id=name, sampling=sampling
        )
        self._scheduler.add(request)
        num_held = 0
        while self._scheduler.has_work:
            batch = self._scheduler.schedule()
            results = [LaneResult(7 if lane.samples else None) for lane in batch.lanes]
            for event in self._scheduler.apply(batch, results, 1e-4 * batch.num_tokens):
                num_held = num_held if event.num_cached_tokens is None else event.num_cached_tokens
        return num_held


def _set_policy(scheduler: Scheduler, policy: Policy) -> None:
    """Takes another order of demotion than the engine's own."""
    by_policy: dict[Policy, Callable[[HeldContext], float] | None] = {
        "value": None,
        "lru": lambda context: 0.0,
        "quota": lambda context: -float(context.payer.account_tally.level),
    }
    order = by_policy[policy]
    if order is not None:
        setattr(scheduler.contexts.leases, "value", order)  # noqa: B010  # what is compared


def needed_pages(tenants: Sequence[Tenant], *, seed: int = 0, num_sessions: int = 300) -> float:
    """Mean pages of all contexts while sessions arrive, were there room for all of them."""
    trace = Trace(tenants, 1 << 17, "lru", seed=seed, num_sessions=num_sessions)
    outcome = trace.run()
    return outcome.idle_page_s.total() / (ARRIVAL_S * num_sessions)
