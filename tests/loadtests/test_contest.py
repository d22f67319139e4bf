"""Contestants take turns, and what is drawn from their rates is drawn round by round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtests.contest import BatchContestant, Contestant, Rates, Shape, compete, shapes
from loadtests.driver import BatchTiming, PromptSource, SequenceTiming
from loadtests.targets import ASKS, ask_for, verdict

DECODE = Shape(phase="decode", width=2, num_prompt=8, num_output=6)
PREFILL = Shape(phase="prefill", width=1, num_prompt=40, num_output=1)


class Recorder:
    """Notes when it is asked; its rates follow one another."""

    def __init__(self, name: str, calls: list[str], rates: Sequence[float]) -> None:
        self.name = name
        self._calls = calls
        self._rates = iter(rates)

    def rate(self, shape: Shape) -> float:
        self._calls.append(self.name)
        return next(self._rates)


def steady(prompts: Sequence[Sequence[int]], num_output: int) -> BatchTiming:
    """A token every half second."""
    times = [0.5 * (1 + position) for position in range(num_output)]
    sequences = [SequenceTiming(times=list(times)) for _ in prompts]
    return BatchTiming(num_prompt_tokens=sum(map(len, prompts)), sequences=sequences, wall_s=times[-1])


def test_the_order_is_turned_round_every_time() -> None:
    calls: list[str] = []
    entries: dict[Shape, Sequence[Contestant]] = {
        DECODE: [Recorder(name, calls, [1.0, 1.0, 1.0]) for name in ("a", "b", "c")],
        PREFILL: [Recorder("d", calls, [1.0, 1.0, 1.0])],
    }
    compete(entries, 3, lambda: calls.append("|"))
    assert "".join(calls) == "|abcd|cbad|abcd"


def test_ratios_are_of_the_same_round() -> None:
    rates = Rates({"ours": [10.0, 40.0, 9.0], "peer": [5.0, 10.0, 9.0]})
    assert rates.median("ours") == 10.0
    assert rates.ratio("ours", "peer") == 2.0


def test_who_did_not_take_part_has_no_number() -> None:
    rates = Rates({"ours": [10.0]})
    assert rates.median("peer") is None
    assert rates.ratio("ours", "peer") is None


def test_stamped_tokens_become_the_rate_of_the_phase() -> None:
    contestant = BatchContestant(name="ours", run=steady, prompts=PromptSource(512))
    assert contestant.rate(DECODE) == pytest.approx(4.0)
    assert contestant.rate(PREFILL) == pytest.approx(80.0)


def test_answers_too_short_to_decode_together_are_refused() -> None:
    contestant = BatchContestant(name="ours", run=steady, prompts=PromptSource(512))
    with pytest.raises(ValueError, match="decode, width 2: 1 tokens are too few"):
        contestant.rate(Shape(phase="decode", width=2, num_prompt=8, num_output=1))


def test_shapes_are_decodes_and_then_prompts() -> None:
    labels = [shape.label for shape in shapes([1, 8], 128, 64, [512])]
    assert labels == ["decode, width 1", "decode, width 8", "prefill, 512 tokens"]


def test_every_ask_belongs_to_one_comparison() -> None:
    keys = {(ask.phase, ask.size, ask.weights, ask.peer) for ask in ASKS}
    assert len(keys) == len(ASKS)
    ask = ask_for(Shape(phase="decode", width=8, num_prompt=128, num_output=64), "int8", "Q4_1")
    assert ask is not None
    assert (ask.ratio, ask.aim) == (3.0, 900)
    assert ask_for(Shape(phase="decode", width=8, num_prompt=64, num_output=64), "int8", "Q4_1") is None


@pytest.mark.parametrize(
    ("shape", "weights", "peer"), [(DECODE, "int8", "Q4_1"), (PREFILL, "int8", "Q4_1"), (DECODE, "int8", "F16")]
)
def test_what_nothing_was_asked_of_has_no_ask(shape: Shape, weights: str, peer: str) -> None:
    assert ask_for(shape, weights, peer) is None


def test_verdicts_are_words() -> None:
    assert [verdict(reached) for reached in (True, False, None)] == ["yes", "no", None]
