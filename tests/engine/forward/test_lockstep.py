"""Lanes that draw together, over a simulated device: all in a step or none, under any pressure, and nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.contexts.commands import AppendTokens, OpenContext
from engine.errors import InvalidRequest, QueueFull, QuotaExceeded
from engine.kv.ceilings import GRACE_MS
from engine.request import GenerateRequest, ProgramSpec
from engine.sampling.params import SamplingParams
from tests.engine.forward.random_lanes import PROGRAM, SOURCE, RandomLanes
from tests.engine.scheduling.rig import Rig, make_request


def draw(rig: Rig, name: str, *context_ids: str, max_tokens: int = 6) -> None:
    """Lets contexts draw together."""
    request = GenerateRequest(
        request_id=name,
        prompt_ids=[],
        context_id=context_ids[0],
        lane_ids=list(context_ids[1:]),
        sampling=SamplingParams(max_tokens=max_tokens, seed=2, ignore_eos=True),
        program=ProgramSpec(source=SOURCE),
    )
    rig.scheduler.add(request, program=PROGRAM)


def opened(rig: Rig, **histories: list[int]) -> None:
    for name, token_ids in histories.items():
        rig.obey(OpenContext(name))
        rig.obey(AppendTokens(name, token_ids))


def test_lanes_of_unlike_length_draw_in_the_same_steps_and_all_get_every_token() -> None:
    rig = Rig(max_batch_tokens=16)
    opened(rig, a=list(range(10, 50)), b=[1, 2])
    draw(rig, "r", "a", "b")
    rig.drain()
    tokens = rig.tokens("r")
    assert len(tokens) == 6
    for name, before in (("a", list(range(10, 50))), ("b", [1, 2])):
        assert rig.scheduler.contexts[name].token_ids == before + tokens
    widths = [len(batch.lanes) for batch in rig.batches if any(lane.samples for lane in batch.lanes)]
    assert widths == [2] * 6


def test_more_lanes_than_may_run_are_refused_and_leave_their_contexts_free() -> None:
    rig = Rig(max_num_seqs=2)
    opened(rig, a=[1], b=[2], c=[3])
    with pytest.raises(InvalidRequest, match="3 lanes"):
        draw(rig, "r", "a", "b", "c")
    draw(rig, "r", "a", "b")
    with pytest.raises(InvalidRequest, match="already"):
        draw(rig, "again", "c", "a")
    rig.drain()
    assert len(rig.tokens("r")) == 6
    draw(rig, "free", "c", "a")
    rig.drain()
    assert len(rig.tokens("free")) == 6


def test_a_full_queue_refuses_lanes() -> None:
    rig = Rig(max_waiting=1)
    opened(rig, a=[1], b=[2])
    with pytest.raises(QueueFull):
        draw(rig, "r", "a", "b")


def test_two_pairs_that_do_not_fit_beside_each_other_both_come_to_their_end() -> None:
    rig = Rig(num_pages=18, max_batch_tokens=8)
    opened(rig, a=list(range(10, 40)), b=list(range(10, 38)), c=list(range(20, 50)), d=list(range(20, 48)))
    draw(rig, "first", "a", "b")
    draw(rig, "second", "c", "d")
    rig.scheduler.add(make_request("plain", [1, 2, 3]))
    rig.drain(2000)
    assert len(rig.tokens("first")) == len(rig.tokens("second")) == 6
    assert rig.tokens("plain")


def test_at_the_ceiling_of_their_account_lanes_end_together_with_one_event() -> None:
    rig = Rig()
    opened(rig, a=[1, 2, 3], b=[4, 5])
    draw(rig, "r", "a", "b", max_tokens=50)
    for _ in range(4):
        rig.step()
    rig.scheduler.ceilings.set({"": 0})
    rig.scheduler.tend()
    rig.pass_time(GRACE_MS)
    events = rig.scheduler.tend()
    assert [event.request_id for event in events] == ["r"]
    assert events[0].error is not None
    assert events[0].error.kind == "QuotaExceeded"
    with pytest.raises(QuotaExceeded):
        draw(rig, "again", "a", "b")
    rig.drain()
    rig.scheduler.tend()
    assert rig.kv.usage.num_used == 0


def test_contexts_of_two_accounts_do_not_draw_together() -> None:
    rig = Rig()
    opened(rig, a=[1])
    rig.obey(OpenContext("b", account="other"))
    rig.obey(AppendTokens("b", [2]))
    with pytest.raises(InvalidRequest, match="one account"):
        draw(rig, "r", "a", "b")
    draw(rig, "alone", "a")
    rig.drain()
    assert len(rig.tokens("alone")) == 6


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_lanes_beside_others_keep_every_history_their_own(first: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(first, first + 20):
        run = RandomLanes(seed)
        run.run()
        tally += run.tally
    for kind in ("drawn together", "ended: stop", "ended: length", "ended: error", "left", "released in use"):
        assert tally[kind] > 0, kind
    assert tally["preemptions"] > 0
