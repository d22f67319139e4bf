"""Steps stay short while somebody who has had less of the device may ask for it at any moment."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from engine.loop import EngineLoop
from engine.scheduling.batch import Batch
from engine.scheduling.pace import MIN_LANES, RIVAL_STEP_S
from engine.scheduling.scheduler import Scheduler
from tests.engine.scheduling.rig import Rig
from tests.engine.scheduling.test_accounts import ask, crowd, tokens_of

LANE_S = 2e-3
"""Of a simulated device on which 32 lanes take longer than a step may."""


def busy(*, overlap: bool = False) -> Rig:
    """A crowd of one account that decodes, and another account that asked for something a moment ago."""
    rig = Rig(
        num_pages=2000, max_num_seqs=32, max_batch_tokens=256, seconds_per_token=LANE_S, overlap=overlap, max_waiting=99
    )
    crowd(rig, "a", 30, max_tokens=400, num_prompt=4)
    for _ in range(4):
        rig.step()
    ask(rig, "first", "b", max_tokens=1)
    rig.step()
    for _ in range(60):
        rig.step()
    assert rig.finish("first") is not None
    return rig


def accounts_of(batch: Batch) -> Counter[str]:
    return Counter(lane.sequence.payer.account for lane in batch.lanes)


def test_the_lanes_of_a_crowd_take_turns_in_steps_that_are_short() -> None:
    rig = busy()
    before = tokens_of(rig, "a")
    steps = [rig.step() for _ in range(60)]
    most = max(len(batch.lanes) for batch in steps)
    assert MIN_LANES <= most < 30
    assert most * LANE_S <= RIVAL_STEP_S * 1.2
    assert rig.scheduler.waits
    got = Counter(lane.sequence.request.request_id for batch in steps for lane in batch.lanes)
    assert len(got) == 30
    assert max(got.values()) - min(got.values()) <= 2
    assert tokens_of(rig, "a") - before == got.total()


def test_a_newcomer_waits_for_no_more_than_one_short_step_and_has_the_next_for_itself() -> None:
    rig = busy()
    ask(rig, "more", "a", num_prompt=100)
    ask(rig, "chat", "b", num_prompt=40, max_tokens=3)
    assert [lane.sequence.request.request_id for lane in rig.step().lanes] == ["chat"]
    rig.step()
    assert len(rig.tokens("chat")) == 2


def test_a_chat_is_not_slowed_by_the_turns_of_the_crowd() -> None:
    rig = busy()
    ask(rig, "chat", "b", max_tokens=20)
    for _ in range(20):
        assert "b" in accounts_of(rig.step())
    assert len(rig.tokens("chat")) == 20


def test_prompts_of_a_crowd_are_computed_in_pieces_that_fit_beside_its_lanes() -> None:
    rig = busy()
    ask(rig, "long", "a", num_prompt=200, max_tokens=1)
    sizes = []
    while rig.finish("long") is None:
        batch = rig.step()
        sizes.append(batch.num_tokens)
    assert max(sizes) * LANE_S <= RIVAL_STEP_S * 1.7
    assert len(sizes) > 5


def test_nobody_is_held_back_once_nobody_else_has_asked_for_a_while() -> None:
    rig = busy()
    assert len(rig.step().lanes) < 30
    rig.pass_time(100_000)
    assert len(rig.step().lanes) == 30
    assert not rig.scheduler.waits


def test_all_lanes_go_at_once_on_a_device_that_is_fast_enough() -> None:
    rig = Rig(num_pages=2000, max_num_seqs=32, max_batch_tokens=256, seconds_per_token=1e-5)
    crowd(rig, "a", 30, max_tokens=100, num_prompt=4)
    ask(rig, "first", "b", max_tokens=1)
    for _ in range(30):
        rig.step()
    assert len(rig.step().lanes) == 30
    assert not rig.scheduler.waits


class Waiting:
    """As much of a scheduler as the loop needs to be told to wait."""

    has_work = True

    def __init__(self) -> None:
        self.waits = False
        self.done: list[str] = []

    def schedule(self) -> Batch:
        """Says so."""
        self.done.append("schedule")
        batch = Batch()
        batch.lanes.append(cast("Any", None))
        return batch

    def apply(self, batch: Batch, results: object, seconds: float) -> list[Any]:
        """Says so."""
        self.done.append("apply")
        return []


class Instant:
    """A device that is done at once."""

    def submit(self, batch: Batch) -> Any:
        """Nothing to wait for."""
        return list


def test_the_loop_takes_commands_between_two_steps_of_which_one_must_wait_for_the_other() -> None:
    scheduler = Waiting()
    loop = EngineLoop(info=cast("Any", None), scheduler=cast("Scheduler", scheduler), runner=cast("Any", Instant()))
    loop.step()
    loop.step()
    assert scheduler.done == ["schedule", "schedule", "apply"]
    scheduler.waits = True
    for _ in range(3):
        scheduler.done.clear()
        loop.step()
        assert scheduler.done == ["apply"]
        scheduler.done.clear()
        loop.step()
        assert scheduler.done == ["schedule"]
