"""Random programs on held contexts: appends, forks, cuts, generations, ends in their middle, failing steps, pressure.

`python -m tests.engine.scheduling.random_programs` runs 10,000 of them and says how often each thing happened; the
suite runs some.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from engine.contexts.commands import (
    AppendTokens,
    ContextCommand,
    EndLease,
    ForkContext,
    OpenContext,
    RetainContext,
    TruncateContext,
)
from engine.contexts.edits import Edit, add_edit, cut_edits
from engine.leases.lease import OnPressure
from engine.request import FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import EOS, SIZE, Rig, expected_tokens, make_request
from tests.engine.scheduling.simulated_device import VOCAB, next_token

KINDS = (
    *(
        "opened",
        "appended",
        "forked",
        "truncated",
        "released",
        "generated",
        "plain",
        "aborted",
        "stopped",
        "retained",
        "pages saved",
        "pages restored",
    ),
    *("hidden", "dropped", "proposals", "taken", "chosen", "banned"),
    *("deferred", "failed steps", "preemptions", "demoted", "copied pages", "tokens shared", "steps"),
)


class _Owner:
    """What one context's owner believes of it."""

    def __init__(self, token_ids: list[int], edits: tuple[Edit, ...] = ()) -> None:
        self.token_ids = token_ids
        self.edits = edits
        self.forget()

    def forget(self) -> None:
        """The generation has ended."""
        self.request: GenerateRequest | None = None
        self.banned: set[int] = set()
        self.chosen: dict[int, int] = {}
        """By position, what was taken instead of the proposal."""
        self.num_proposals = 0
        """Those answered so far."""

    def seen(self, history: list[int]) -> list[int]:
        """What the last token of a history sees."""
        last = len(history) - 1
        return [
            token_id
            for position, token_id in enumerate(history)
            if position == last
            or not any(edit.since <= last and edit.start <= position < edit.stop for edit in self.edits)
        ]


class RandomProgram:
    """One program, drawn from its seed.

    Attributes:
        tally: How often each of `KINDS` happened.
    """

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.tally: Counter[str] = Counter()
        self._rig = Rig(
            num_pages=rng.choice([12, 20, 60]),
            max_num_seqs=rng.choice([2, 5, 9]),
            max_batch_tokens=rng.choice([9, 16, 64]),
            overlap=rng.random() < 0.7,
            prefix_cache=rng.random() < 0.7,
            host_pages=rng.choice([0, 8, 40]),
        )
        self._owners: dict[str, _Owner] = {}
        self._plain: dict[str, GenerateRequest] = {}
        self._ids = 0

    def run(self, num_steps: int = 60) -> None:
        """Plays the program and checks what came of it.

        Raises:
            AssertionError: A history or what follows from it is not as it must be, or pages are lost.
        """
        acts = [
            self._open,
            self._append,
            self._fork,
            self._truncate,
            self._release,
            self._leave,
            self._join,
            self._edit,
            self._retain,
        ]
        weights = [3, 4, 2, 2, 1, 1, 1, self._rng.choice([0, 2]), self._rng.choice([0, 3])]
        for _ in range(num_steps):
            for act in self._rng.choices(acts, weights, k=self._rng.randrange(3)):
                act()
            self._generate()
            for name in [name for name, owner in self._owners.items() if owner.request is not None]:
                if self._rng.random() < 0.5:
                    self._steer(self._owners[name])
            if self._rng.random() < 0.02:
                self._rig.fail_next = True
            self._step()
        self._finish()
        self._count()

    def _finish(self) -> None:
        self._rig.fail_next = False
        self._drain()
        for context_id, owner in self._owners.items():
            assert self._rig.scheduler.contexts[context_id].token_ids == owner.token_ids
            if owner.token_ids:
                self._compute(context_id, owner, max_tokens=3)
        self._drain()
        for name, request in self._plain.items():
            expected, got = expected_tokens(request), self._rig.tokens(name)
            assert got == (expected[: len(got)] if self._rig.finish(name) is FinishReason.ERROR else expected)
        assert self._rig.scheduler.release_contexts(list(self._owners)) == []
        self._rig.scheduler.check_integrity()
        self._rig.kv.clear_cache()
        assert self._rig.kv.usage.num_free == self._rig.kv.num_pages

    def _drain(self) -> None:
        self._rig.drain()
        self._take_ends()
        while any(owner.request is not None for owner in self._owners.values()):
            for owner in self._owners.values():
                self._steer(owner)
            self._rig.drain()
            self._take_ends()

    def _step(self) -> None:
        self._rig.step()
        self._take_ends()

    def _take_ends(self) -> None:
        """Compares what generations that have ended gave with what they had to give."""
        for owner in self._owners.values():
            request = owner.request
            reason = None if request is None else self._rig.finish(request.request_id)
            if request is None or reason is None:
                continue
            got, expected = self._rig.tokens(request.request_id), self._expected(owner, request)
            assert got == (expected[: len(got)] if reason is FinishReason.ERROR else expected)
            owner.token_ids = owner.token_ids + got
            owner.forget()

    def _expected(self, owner: _Owner, request: GenerateRequest) -> list[int]:
        sampling = request.sampling
        history = list(owner.token_ids)
        while len(history) < len(owner.token_ids) + sampling.max_tokens:
            drawn = next_token(owner.seen(history), sampling.seed or 0, 0, owner.banned)
            history.append(owner.chosen.get(len(history), drawn))
            if history[-1] == EOS:
                break
        return history[len(owner.token_ids) :]

    def _steer(self, owner: _Owner) -> None:
        """Says what becomes of a proposal, if there is one."""
        request = owner.request
        if request is None or not request.stepped:
            return
        name = request.request_id
        proposals = [event for event in self._rig.events if event.request_id == name and event.proposal is not None]
        if len(proposals) == owner.num_proposals:
            return
        history = owner.token_ids + self._rig.tokens(name)
        first = proposals[-1].proposal
        assert first is not None
        told = [first, *(token_id for token_id, _ in proposals[-1].further)]
        for at, expected in enumerate(told):
            seen = owner.seen(history + told[:at])
            assert expected == next_token(seen, request.sampling.seed or 0, 0, owner.banned)
        num_taken = self._rng.randrange(len(told))
        history += told[:num_taken]
        proposal = told[num_taken]
        owner.num_proposals = len(proposals)
        self.tally["proposals"] += 1
        self.tally["told together"] += len(told) > 1
        kind, num_steps = self._rng.choice(["taken", "taken", "chosen"]), self._rng.choice([1, 1, 3])
        if request.sampling.max_tokens == 1 and self._rng.random() < 0.3:
            kind = "banned"
            owner.banned.add(proposal)
        if kind == "chosen":
            owner.chosen[len(history)] = self._rng.randrange(VOCAB)
        self.tally[kind] += 1
        token_id = owner.chosen[len(history)] if kind == "chosen" else None
        banned = [proposal] if kind == "banned" else []
        self._rig.events += self._rig.scheduler.stepping.advance(name, token_id, num_steps, banned, num_taken)

    def _tell(self, command: ContextCommand) -> None:
        self._rig.obey(command)

    def _pick(self, *, busy: bool = False) -> str | None:
        found = [name for name, owner in self._owners.items() if (owner.request is not None) is busy]
        return self._rng.choice(found) if found else None

    def _name(self) -> str:
        self._ids += 1
        return str(self._ids)

    def _some_tokens(self) -> list[int]:
        rng = self._rng
        return [rng.choice([0, 1])] * rng.randrange(12) + [rng.randrange(VOCAB) for _ in range(rng.randrange(3))]

    def _open(self) -> None:
        if len(self._owners) < 12:
            name = self._name()
            self._owners[name] = _Owner([])
            salt = self._rng.choice(["", "other"])
            self._tell(OpenContext(name, f"{salt}/{self._rng.choice('abc')}", salt))
            self.tally["opened"] += 1

    def _append(self) -> None:
        name = self._pick()
        if name is None:
            return
        owner, token_ids = self._owners[name], self._some_tokens()
        if len(owner.token_ids) + len(token_ids) <= 30:
            owner.token_ids = owner.token_ids + token_ids
            self._tell(AppendTokens(name, token_ids))
            self.tally["appended"] += 1

    def _fork(self) -> None:
        name = self._pick()
        if name is not None and len(self._owners) < 12:
            new_ids = [self._name() for _ in range(self._rng.choice([1, 1, 3]))]
            self._tell(ForkContext(name, new_ids))
            owner = self._owners[name]
            self._owners |= {new_id: _Owner(owner.token_ids, owner.edits) for new_id in new_ids}
            self.tally["forked"] += len(new_ids)

    def _truncate(self) -> None:
        name = self._pick()
        if name is not None:
            owner = self._owners[name]
            length = self._rng.randint(0, len(owner.token_ids))
            if length < len(owner.token_ids):
                owner.edits = cut_edits(owner.edits, length)
            owner.token_ids = owner.token_ids[:length]
            self._tell(TruncateContext(name, length, owner.edits))
            self.tally["truncated"] += 1

    def _edit(self) -> None:
        name = self._pick()
        if name is None or not self._owners[name].token_ids:
            return
        owner, length = self._owners[name], len(self._owners[name].token_ids)
        start, drops = self._rng.randint(0, length), self._rng.random() < 0.6
        owner.edits = add_edit(owner.edits, start, self._rng.randint(start, length), length, drops=drops)
        self._tell(TruncateContext(name, length, owner.edits))
        self.tally["dropped" if drops else "hidden"] += 1

    def _retain(self) -> None:
        name = self._pick(busy=self._rng.random() < 0.3)
        if name is None:
            return
        if self._rng.random() < 0.2:
            self._tell(EndLease(name, name))
            return
        on_pressure: OnPressure = self._rng.choice(["host", "host", "tokens"])
        max_kib, value = self._rng.choice([20, 1000]), self._rng.random()
        self._tell(RetainContext(name, name, self._rng.choice([5, 500]), max_kib, value, on_pressure))
        self.tally["retained"] += 1

    def _release(self) -> None:
        name = self._pick(busy=self._rng.random() < 0.3)
        if name is None:
            return
        owner = self._owners.pop(name)
        events = self._rig.scheduler.release_contexts([name])
        assert [event.finish_reason for event in events] == ([FinishReason.ERROR] if owner.request else [])
        self.tally["released"] += 1

    def _leave(self) -> None:
        """Ends a generation in its middle, and keeps some of its tokens."""
        name = self._pick(busy=True)
        if name is None:
            return
        owner = self._owners[name]
        assert owner.request is not None
        if self._rng.random() < 0.5:
            self._rig.scheduler.abort(owner.request.request_id)
            self.tally["aborted"] += 1
        else:
            self._rig.scheduler.stop(owner.request.request_id, 0)
            self.tally["stopped"] += 1
        got = self._rig.tokens(owner.request.request_id)
        assert got == self._expected(owner, owner.request)[: len(got)]
        owner.token_ids = owner.token_ids + got[: self._rng.randint(0, len(got))]
        owner.forget()
        self._tell(TruncateContext(name, len(owner.token_ids), owner.edits))

    def _join(self) -> None:
        name = self._name()
        self._plain[name] = make_request(
            name, [*self._some_tokens(), 5], max_tokens=self._rng.randint(0, 12), salt=self._rng.choice(["", "other"])
        )
        self._rig.scheduler.add(self._plain[name])
        self.tally["plain"] += 1

    def _generate(self) -> None:
        for name, owner in self._owners.items():
            if owner.request is None and owner.token_ids and self._rng.random() < 0.2:
                self._compute(name, owner, max_tokens=self._rng.choice([0, 1, 4, 9]))
                self.tally["generated"] += 1
                if owner.request is not None and not owner.request.stepped and self._rng.random() < 0.1:
                    self._defer(name, owner)

    def _compute(self, context_id: str, owner: _Owner, *, max_tokens: int) -> None:
        if len(owner.token_ids) + max_tokens > self._rig.kv.num_pages * SIZE:
            return  # it would be refused
        owner.request = GenerateRequest(
            request_id=self._name(),
            prompt_ids=[],
            context_id=context_id,
            sampling=SamplingParams(max_tokens=max_tokens, seed=self._rng.randrange(99)),
            stepped=max_tokens > 0 and self._rng.random() < 0.4,
            priority=self._rng.choice([0, 0, 1]),
        )
        self._rig.scheduler.add(owner.request)

    def _defer(self, name: str, owner: _Owner) -> None:
        """Says that the tokens to come are not wanted, while they are computed."""
        assert owner.request is not None
        before = owner.token_ids
        self._tell(TruncateContext(name, len(before), owner.edits))
        while self._rig.finish(owner.request.request_id) is None:
            self._rig.step()
        self._take_ends()
        owner.token_ids = before
        self.tally["deferred"] += 1

    def _count(self) -> None:
        stats = self._rig.scheduler.stats
        lanes = [lane for batch in self._rig.batches for lane in batch.lanes]
        self.tally["preemptions"] += stats.num_preemptions
        self.tally["demoted"] += self._rig.scheduler.contexts.num_demoted
        self.tally["failed steps"] += self._rig.num_failed
        self.tally["copied pages"] += sum(len(lane.copies) for lane in lanes)
        self.tally["pages saved"] += self._rig.scheduler.tier.num_saved
        self.tally["pages restored"] += self._rig.scheduler.tier.num_restored
        self.tally["tokens shared"] += stats.num_cached_tokens
        self.tally["steps"] += len(self._rig.batches)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.scheduling.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="programs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first; the others follow")
    options = parser.parse_args(argv)
    start, tally = time.monotonic(), Counter[str]()
    for seed in range(options.first, options.first + options.count):
        program = RandomProgram(seed)
        try:
            program.run()
        except Exception:
            print(f"seed {seed} failed", flush=True)
            raise
        tally += program.tally
    print(f"{options.count} programs in {time.monotonic() - start:.0f} s, every pool intact")
    print(", ".join(f"{tally[kind]} {kind}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
