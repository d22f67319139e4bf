"""Passes that look behind one context side by side, over a simulated device."""

from __future__ import annotations

from engine.contexts.commands import AppendTokens, ForkContext, OpenContext, ReleaseContexts
from engine.request import GenerateRequest, LanePass, Readout
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import Rig


def look(rig: Rig, name: str, row: int) -> None:
    """Reads one row behind a context of that name."""
    rig.scheduler.add(
        GenerateRequest(
            request_id=name,
            prompt_ids=[],
            context_id=name,
            sampling=SamplingParams(max_tokens=0),
            passes=[LanePass([row])],
            readout=Readout(1),
        )
    )


def looked_behind(rig: Rig, history: list[int], beginning: list[int]) -> list[int]:
    """How many lanes each step has where six looks with one beginning follow a context that is computed."""
    rig.obey(OpenContext("c"))
    rig.obey(AppendTokens("c", history))
    rig.scheduler.add(
        GenerateRequest(request_id="c", prompt_ids=[], context_id="c", sampling=SamplingParams(max_tokens=0))
    )
    rig.drain()
    names = [f"look{number}" for number in range(6)]
    rig.obey(ForkContext("c", names))
    num_before = len(rig.batches)
    for number, name in enumerate(names):
        rig.obey(AppendTokens(name, [*beginning, 40 + number]))
        look(rig, name, len(history) + len(beginning))
    rig.drain()
    rig.scheduler.release_contexts(ReleaseContexts([*names, "c"]).context_ids)
    return [len(batch.lanes) for batch in rig.batches[num_before:] if batch.lanes]


def test_looks_at_a_context_are_computed_in_one_step_though_they_begin_alike() -> None:
    rig = Rig(num_pages=100, max_num_seqs=8, max_batch_tokens=64, prefix_cache=False)
    assert looked_behind(rig, list(range(1, 21)), [8, 9, 10]) == [6]


def test_a_long_beginning_in_common_is_computed_once() -> None:
    rig = Rig(num_pages=100, max_num_seqs=8, max_batch_tokens=256, prefix_cache=False)
    looked_behind(rig, list(range(1, 21)), [8, 9] * 20)
    assert rig.scheduler.stats.num_prefill_tokens < 20 + 6 * 40
