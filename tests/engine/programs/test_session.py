"""Programs of running sequences: step by step, together with others, and drawn again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from engine.programs.binding import bind
from engine.programs.reference import run
from engine.programs.runner import ProgramRunner
from engine.programs.session import ProgramLane, ProgramSession
from engine.programs.values import StepValues
from engine.runner.programs import ProgramRows
from engine.sampling.choice import SampleLane
from engine.sampling.params import SamplingParams
from engine.sampling.random import mix64, stream_key
from engine.sampling.sampler import Sampler
from engine.sampling.state import SamplerState
from engine.scheduling.batch import RowAssignment

V = 50
CPU = torch.device("cpu")
GAMMA = 0x9E3779B97F4A7C15

WALK = """
state.level = 1.0

def sample(logits, key, prev, step, history, counts, rate):
    state.level = state.level * 0.5 + rate * float(prev) + float(sum(history)) * 0.01 + float(step)
    probe.level = state.level
    return gumbel_argmax(logits - float(counts) + where(one_hot(prev), state.level, 0.0), key)
"""


def logits_of(position: int, seed: int) -> torch.Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(position * 1000 + seed))


def expected_walk(prompt: list[int], seed: int, rate: float, num_tokens: int) -> list[int]:
    """The same with the reference, alone."""
    bound = bind(WALK, {"rate": rate}, V)
    tokens, state = list(prompt), None
    for position in range(len(prompt), len(prompt) + num_tokens):
        key = mix64(stream_key(seed, 0) + (position + 1) * GAMMA)
        step = StepValues(
            vocab_size=V,
            logits=logits_of(position, seed).numpy(),
            key=key,
            step=position - len(prompt),
            history=np.array(tokens),
            counts=np.bincount(tokens[len(prompt) :], minlength=V),
        )
        found = run(bound.graph, step, bound.parameters, state)
        tokens.append(found.token)
        state = found.state
    return tokens[len(prompt) :]


class Sequence:
    """One sequence as the engine would drive it."""

    def __init__(self, prompt: list[int], seed: int, rate: float) -> None:
        self.tokens = list(prompt)
        self.seed = seed
        self.num_prompt = len(prompt)
        self.session = ProgramSession(bind(WALK, {"rate": rate}, V), stream_key(seed, 0), len(prompt))
        self.session.begin(prompt, 1000, CPU)

    def lane(self, row: int) -> ProgramLane:
        return ProgramLane(self.session, row, len(self.tokens))

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


def step(runner: ProgramRunner, sequences: list[Sequence]) -> list[int]:
    logits = torch.stack([logits_of(len(one.tokens), one.seed) for one in sequences])
    lanes = [one.lane(row) for row, one in enumerate(sequences)]
    return finished(runner, logits, lanes)


def finished(runner: ProgramRunner, logits: torch.Tensor, lanes: list[ProgramLane]) -> list[int]:
    """Tokens of a step, told to the sessions as the engine does."""
    drawn = runner.run(logits, lanes)
    assert sorted(drawn.places) == list(range(len(lanes)))
    for place, lane in enumerate(lanes):
        lane.session.append(lane.position, drawn.tokens[place : place + 1])
    found: list[int] = drawn.tokens.tolist()
    return found


def test_sequences_that_come_and_go_draw_as_if_alone() -> None:
    runner = ProgramRunner(V, CPU)
    sequences = [Sequence([1, 2, 3], 5, 0.25), Sequence([7], 6, 0.5), Sequence([9] * 12, 7, -1.0)]
    for turn in range(9):
        present = [one for number, one in enumerate(sequences) if (turn + number) % 3]
        for one, token in zip(present, step(runner, present), strict=True):
            one.tokens.append(token)
    for one, rate in zip(sequences, (0.25, 0.5, -1.0), strict=True):
        prompt = one.tokens[: one.num_prompt]
        assert one.output == expected_walk(prompt, one.seed, rate, len(one.output))
        assert len(one.output) == 6


def test_a_position_that_is_drawn_again_comes_out_the_same() -> None:
    runner = ProgramRunner(V, CPU)
    one = Sequence([4, 5], 3, 0.75)
    for turn in range(8):
        tokens = step(runner, [one])
        if turn % 2:
            # The step was void: the sequence gave up its pages, and enters again with the tokens that are known.
            one.session.begin(one.tokens, 10, CPU)
            assert step(runner, [one]) == tokens
        one.tokens += tokens
    assert one.output == expected_walk([4, 5], 3, 0.75, 8)


def test_a_long_history_grows() -> None:
    runner = ProgramRunner(V, CPU)
    one = Sequence([1], 8, 0.1)
    one.session.begin([1], 0, CPU)
    for _ in range(300):
        one.tokens += step(runner, [one])
    assert one.output == expected_walk([1], 8, 0.1, 300)


def test_a_token_outside_of_the_vocabulary_is_told_apart() -> None:
    runner = ProgramRunner(V, CPU)
    lanes = []
    for row, value in enumerate((V - 1, V, -5)):
        session = ProgramSession(bind("def sample(x):\n    return x\n", {"x": value}, V), 1, 1)
        session.begin([1], 4, CPU)
        lanes.append(ProgramLane(session, row, 1))
    assert finished(runner, torch.zeros(3, V), lanes) == [V - 1, -1, -1]


def test_programs_of_several_kinds_share_a_step() -> None:
    runner = ProgramRunner(V, CPU)
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(1))
    lanes = []
    for row, source in ((3, "argmax(logits)"), (0, "argmax(-logits)"), (2, "argmax(logits)")):
        session = ProgramSession(bind(f"def sample(logits):\n    return {source}\n", {}, V), 1, 1)
        session.begin([1], 4, CPU)
        lanes.append(ProgramLane(session, row, 1))
    assert finished(runner, logits, lanes) == [
        int(logits[3].argmax()),
        int(logits[0].argmin()),
        int(logits[2].argmax()),
    ]


@pytest.mark.parametrize("count", [5, 200])
def test_only_the_programs_used_last_are_kept_ready(count: int) -> None:
    runner = ProgramRunner(V, CPU)
    for number in range(count):
        session = ProgramSession(bind(f"def sample():\n    return {number} % {V}\n", {}, V), 1, 1)
        assert finished(runner, torch.zeros(1, V), [ProgramLane(session, 0, 1)]) == [number % V]
    assert len(runner._compiled) == min(count, 128)


@pytest.mark.parametrize(
    ("body", "defers"),
    [
        ("    return gumbel_argmax(cumsum(logits), key)\n", True),
        ("    return argmax(logits)\n", False),
        ("    t = gumbel_argmax(logits, key)\n    probe.t = t\n    return t\n", False),
        ("    u = uniform(key)\n    return gumbel_argmax(logits * u, key)\n", False),
    ],
    ids=["a last draw", "no draw", "a draw that is needed", "a second draw"],
)
def test_a_last_draw_can_be_left_to_others(body: str, defers: bool) -> None:
    runner = ProgramRunner(V, CPU)
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(2))
    bound = bind(f"def sample(logits, key):\n{body}", {}, V)
    lanes = [ProgramLane(ProgramSession(bound, stream_key(row, 0), 1), row, 3) for row in range(2)]
    for lane in lanes:
        lane.session.begin([1, 2, 3], 4, CPU)
    drawn = runner.run(logits, lanes, defer=True)
    assert bool(drawn.scores) == defers
    if defers:
        ((places, scores),) = drawn.scores
        assert list(places) == [0, 1]
        torch.testing.assert_close(scores, logits.cumsum(1))
        assert drawn.places == []


def test_nothing_is_kept_of_sequences_that_have_ended() -> None:
    state = SamplerState(num_rows=2, vocab_size=V, device=CPU)
    programs = ProgramRows(state)
    bound = bind("def sample(logits, bias):\n    return argmax(logits + bias)\n", {"bias": [0.5] * V}, V)
    session = ProgramSession(bound, stream_key(1, 0), 1)
    params = programs.assign(RowAssignment(0, SamplingParams(max_tokens=5), 1, 0, [1], [2], (0,), session))
    state.assign(0, params=params, seed=1, stream=0, prompt_ids=[1], output_ids=[2], eos_token_ids=(0,))
    lanes = programs.running([SampleLane(row=0, position=2, num_output=1)])
    programs._runner.run(torch.zeros(1, V), lanes)
    programs.prepare([SampleLane(row=0, position=3, num_output=2)])
    ended = weakref.ref(session)
    programs.release(0)
    del session, lanes
    gc.collect()
    assert ended() is None


WATERMARK = """
def sample(logits, key, prev, delta):
    return gumbel_argmax(logits + where(hash_uniform(prev, vocab) < 0.5, delta, 0.0), key)
"""


class Rows:
    """Three rows of device state, of which the first and the last have a program."""

    def __init__(self, params: SamplingParams) -> None:
        self.state = SamplerState(num_rows=3, vocab_size=V, device=CPU)
        self.programs = ProgramRows(self.state)
        self.sampler = Sampler(self.state)
        for row in range(3):
            bound = bind(WATERMARK, {"delta": 1.0 + row}, V)
            session = None if row == 1 else ProgramSession(bound, stream_key(row, 0), 2)
            own = params if row == 2 else SamplingParams(max_tokens=9, temperature=1.0)
            taken = RowAssignment(row, own, row, 0, [4, 5], [], (0,), session)
            self.state.assign(
                row,
                params=self.programs.assign(taken),
                seed=row,
                stream=0,
                prompt_ids=[4, 5],
                output_ids=[],
                eos_token_ids=(0,),
            )

    def step(self, number: int, *, is_prepared: bool) -> list[int]:
        lanes = [SampleLane(row=row, position=2 + number, num_output=number) for row in range(3)]
        logits = torch.stack([logits_of(number, row) for row in range(3)])
        if is_prepared:
            self.programs.prepare(lanes)
        draws = self.programs.draw(self.sampler, logits, lanes, None)
        token_ids = self.sampler.sample(draws.logits, lanes, None, draws.forced).token_ids
        draws.tell(token_ids)
        found: list[int] = token_ids.tolist()
        return found


@pytest.mark.parametrize(
    "params",
    [SamplingParams(max_tokens=9, temperature=1.0), SamplingParams(max_tokens=9, temperature=1.0, logit_bias={3: 9.0})],
    ids=["bare", "edited"],
)
def test_draws_that_are_prepared_are_those_that_are_not(params: SamplingParams) -> None:
    prepared, plain = Rows(params), Rows(params)
    for number in range(6):
        assert prepared.step(number, is_prepared=number != 3) == plain.step(number, is_prepared=False)
    assert prepared.state.last_tokens.tolist() == plain.state.last_tokens.tolist()


def test_draws_prepared_for_other_lanes_are_not_taken() -> None:
    rows, plain = (
        Rows(SamplingParams(max_tokens=9, temperature=1.0)),
        Rows(SamplingParams(max_tokens=9, temperature=1.0)),
    )
    rows.programs.prepare([SampleLane(row=0, position=7, num_output=5)])
    assert rows.step(0, is_prepared=False) == plain.step(0, is_prepared=False)
