"""Stepped sequences: what is computed while their callers decide, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest

from engine.contexts.commands import AppendTokens, OpenContext
from engine.request import GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams
from engine.scheduling.stepping import BURST, CONFIDENT, LONG_BURST, SURE
from tests.engine.scheduling.rig import Rig
from tests.engine.scheduling.simulated_device import continuation


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    return continuation(prompt, seed=3, stream=0, max_tokens=num_tokens, stop=frozenset())


class Stepped:
    """One stepped generation on a context of its own."""

    def __init__(
        self, rig: Rig, prompt: list[int], *, name: str = "r", max_tokens: int = 40, seed: int = 3, num_given: int = 0
    ) -> None:
        self.rig, self.name = rig, name
        rig.obey(OpenContext(name))
        rig.obey(AppendTokens(name, prompt))
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=True)
        asked = GenerateRequest(request_id=name, prompt_ids=[], sampling=sampling, context_id=name, stepped=True)
        rig.scheduler.add(msgspec.structs.replace(asked, num_given=num_given))
        self.num_told = 0

    @property
    def told(self) -> list[TokenEvent]:
        return [one for one in self.rig.events if one.request_id == self.name and one.proposal is not None]

    def wait(self) -> list[int]:
        """Steps until something new is proposed, and returns all that is."""
        for _ in range(50):
            if len(self.told) > self.num_told:
                break
            self.rig.step()
        self.num_told = len(self.told)
        event = self.told[-1]
        assert event.proposal is not None
        return [event.proposal, *(token_id for token_id, _ in event.further)]

    def go_on(self, token_id: int | None = None, *, num_taken: int = 0, banned: tuple[int, ...] = ()) -> None:
        self.rig.events += self.rig.scheduler.stepping.advance(self.name, token_id, 1, banned, num_taken)

    def take_all(self) -> int:
        """Takes all that is proposed; returns how much that was."""
        told = self.wait()
        self.go_on(num_taken=len(told) - 1)
        return len(told)


def test_nothing_is_computed_behind_the_first_proposal_until_it_is_taken() -> None:
    rig = Rig()
    stepped = Stepped(rig, [1, 2, 3])
    stepped.wait()
    assert not rig.scheduler.has_work
    stepped.go_on()
    assert rig.scheduler.has_work


def test_whoever_takes_what_is_proposed_waits_for_no_step_and_is_told_of_several_at_a_time() -> None:
    rig = Rig()
    stepped = Stepped(rig, [1, 2, 3], max_tokens=60)
    counts: list[int] = []
    while sum(counts) < 60:
        counts.append(stepped.take_all())
        if 1 < sum(counts) < 50:
            assert rig.scheduler.has_work or rig.in_flight
    assert rig.tokens("r") == expected([1, 2, 3], 60)
    assert counts[:CONFIDENT] == [1] * CONFIDENT
    assert counts[CONFIDENT + 1] == BURST
    num_before = next(at for at, count in enumerate(counts) if count > BURST)
    assert sum(counts[:num_before]) >= SURE
    assert max(counts[:num_before]) == BURST
    assert max(counts) == LONG_BURST
    rig.drain()
    assert rig.scheduler.contexts["r"].token_ids == [1, 2, 3, *expected([1, 2, 3], 60)]


@pytest.mark.parametrize(
    ("size", "place"), [*((BURST, place) for place in range(BURST)), *((LONG_BURST, place) for place in (0, 4, 7))]
)
def test_another_token_than_the_one_proposed_makes_what_was_computed_behind_it_void(size: int, place: int) -> None:
    rig = Rig()
    stepped = Stepped(rig, [1, 2, 3], max_tokens=80)
    while len(told := stepped.wait()) < size:
        stepped.go_on(num_taken=len(told) - 1)
    other = (told[place] + 1) % 7
    taken = [1, 2, 3, *rig.tokens("r"), *told[:place], other]
    stepped.go_on(other, num_taken=place)
    assert stepped.wait() == expected(taken, 1)  # one at a time again
    assert not rig.scheduler.has_work
    while rig.finish("r") is None:
        stepped.take_all()
    assert rig.tokens("r") == [*taken[3:], *expected(taken, 80 - len(taken) + 3)]
    rig.drain()


@pytest.mark.parametrize("num_given", [1, 5, 11])
def test_one_that_was_cut_off_goes_on_with_the_proposal_behind_what_was_taken(num_given: int) -> None:
    rig = Rig()
    whole = expected([1, 2, 3], 12)
    stepped = Stepped(rig, [1, 2, 3, *whole[:num_given]], max_tokens=12, num_given=num_given)
    while rig.finish("r") is None:
        stepped.take_all()
    assert rig.tokens("r") == whole[num_given:]


def test_a_ban_makes_void_what_was_drawn_without_it() -> None:
    rig = Rig()
    stepped = Stepped(rig, [1, 2, 3], max_tokens=60)
    while len(told := stepped.wait()) < BURST:
        stepped.go_on(num_taken=len(told) - 1)
    before = [1, 2, 3, *rig.tokens("r"), told[0]]
    stepped.go_on(banned=(told[1],))
    (proposed,) = stepped.wait()[:1]
    assert proposed != told[1]
    assert rig.tokens("r") == before[3:]


def test_an_end_leaves_the_context_with_what_was_taken_alone() -> None:
    rig = Rig()
    stepped = Stepped(rig, [1, 2, 3], max_tokens=60)
    while len(stepped.wait()) < BURST:
        stepped.take_all()
    length = 3 + len(rig.tokens("r"))
    rig.scheduler.abort("r")
    rig.drain()
    info = rig.scheduler.contexts.describe("r")
    assert info.length == length
    assert info.num_computed <= length
    assert rig.kv.usage.num_used <= -(-length // 4) + 1


def test_a_guess_at_what_is_taken_costs_nobody_his_pages() -> None:
    """With all pages in use, the steps behind a proposal are left out, and its caller goes on as ever."""
    rig = Rig(num_pages=8)
    stepped = Stepped(rig, [1] * 12, max_tokens=20)
    for _ in range(5):
        stepped.take_all()
    preempted = rig.scheduler.stats.num_preemptions
    while rig.finish("r") is None:
        stepped.take_all()
    assert rig.tokens("r") == expected([1] * 12, 20)
    assert rig.scheduler.stats.num_preemptions == preempted
    rig.drain()
