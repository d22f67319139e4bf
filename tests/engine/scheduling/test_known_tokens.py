"""Tokens that an owner appends where the history has some already."""

from __future__ import annotations

import pytest

from engine.contexts.commands import AppendTokens, OpenContext, TruncateContext
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.stepping import LONG_BURST
from tests.engine.scheduling.rig import Rig
from tests.engine.scheduling.simulated_device import continuation

HISTORY = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def computed(rig: Rig) -> int:
    return rig.scheduler.contexts.describe("c").num_computed


def history(rig: Rig) -> list[int]:
    return rig.scheduler.contexts["c"].token_ids


@pytest.mark.parametrize(
    ("token_ids", "start", "after", "num_computed"),
    [
        ([7, 8, 9, 10], 6, [*HISTORY, 10], 9),
        ([7, 8], 6, HISTORY[:8], 8),
        ([7, 5, 6], 6, [*HISTORY[:7], 5, 6], 7),
        ([10], 9, [*HISTORY, 10], 9),
        ([], 9, HISTORY, 9),
        ([9], None, [*HISTORY, 9], 9),
    ],
)
def test_what_is_there_already_stays_as_far_as_it_is_the_same(
    token_ids: list[int], start: int | None, after: list[int], num_computed: int
) -> None:
    rig = Rig(prefix_cache=False)
    rig.obey(OpenContext("c"))
    rig.obey(AppendTokens("c", HISTORY))
    rig.scheduler.add(
        GenerateRequest(request_id="r", prompt_ids=[], sampling=SamplingParams(max_tokens=0), context_id="c")
    )
    rig.drain()
    assert computed(rig) == 9
    rig.obey(AppendTokens("c", token_ids, start))
    assert (history(rig), computed(rig)) == (after, num_computed)
    rig.scheduler.check_integrity()


class Stepping:
    """A stepped generation behind the history, whose caller takes all that it is shown."""

    def __init__(self, rig: Rig, *stop_token_ids: int) -> None:
        self.rig = rig
        rig.obey(OpenContext("c"))
        rig.obey(AppendTokens("c", HISTORY))
        sampling = SamplingParams(max_tokens=60, seed=3, ignore_eos=True, stop_token_ids=stop_token_ids)
        rig.scheduler.add(
            GenerateRequest(request_id="r", prompt_ids=[], sampling=sampling, context_id="c", stepped=True)
        )
        self._num_told = 0

    @property
    def length(self) -> int:
        """Tokens of the history and of all that was taken."""
        return len(HISTORY) + sum(len(event.token_ids) for event in self.rig.events)

    @property
    def is_over(self) -> bool:
        return any(event.finish_reason is not None for event in self.rig.events)

    def shown(self) -> list[int]:
        """Waits for what is proposed next."""
        while all(event.proposal is None for event in self.rig.events[self._num_told :]):
            self.rig.step()
        (event,) = (event for event in self.rig.events[self._num_told :] if event.proposal is not None)
        self._num_told = len(self.rig.events)
        assert event.proposal is not None
        return [event.proposal, *(token_id for token_id, _ in event.further)]

    def take(self, token_ids: list[int]) -> None:
        """Takes the first of what is shown."""
        if token_ids:
            advance = self.rig.scheduler.stepping.advance
            self.rig.events += advance("r", token_ids[-1], 1, (), len(token_ids) - 1)


@pytest.mark.parametrize("num_taken", range(LONG_BURST))
def test_proposals_that_are_taken_with_the_last_word_are_there_with_their_pages(num_taken: int) -> None:
    """A caller that ends a generation says with that what it took, and appends it in any case."""
    rig = Rig(prefix_cache=False)
    stepping = Stepping(rig)
    while len(shown := stepping.shown()) < LONG_BURST:
        stepping.take(shown)
    length, taken = stepping.length, shown[:num_taken]
    stepping.take(taken)
    rig.scheduler.abort("r")
    rig.obey(TruncateContext("c", length + num_taken))
    rig.obey(AppendTokens("c", taken, length))
    drawn = continuation(HISTORY, seed=3, stream=0, max_tokens=length + num_taken - len(HISTORY), stop=frozenset())
    assert history(rig) == HISTORY + drawn
    assert computed(rig) == length + num_taken
    rig.scheduler.check_integrity()


def test_a_token_that_ends_a_sequence_leaves_nothing_computed_behind_it() -> None:
    """It may have been computed ahead, before anybody knew that it would be drawn."""
    drawn = continuation(HISTORY, seed=3, stream=0, max_tokens=60, stop=frozenset())
    at = next(at for at in range(14, 60) if drawn[at] not in drawn[:at])
    rig = Rig(prefix_cache=False)
    stepping = Stepping(rig, drawn[at])
    while not stepping.is_over:
        shown = stepping.shown()
        rig.step()
        rig.step()
        stepping.take(shown)
    assert history(rig) == HISTORY + drawn[: at + 1]
    assert computed(rig) == len(history(rig)) - 1
    rig.scheduler.check_integrity()
