"""Rules that judge guesses: the torch form against the meaning, and what the rules that are there do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.programs.binding import bind_drawer, bind_sampler, bind_verifier
from engine.programs.errors import ProgramInvalid
from engine.programs.reference import first_state, run
from engine.programs.torch_form import BatchValues, TorchProgram
from engine.programs.values import StepValues
from engine.programs.verify_rules import GREEDY, REJECTION
from tests.engine.programs.random_programs import exact_programs

V = 40
CPU = torch.device("cpu")


def judging(source: str) -> str:
    """A random program that draws, made into one that judges: it reads `q` and `p` instead of lanes and a bias."""
    source = source.replace("def sample(logits, lanes, key,", "def verify(logits, p, q, draft, key,")
    source = source.replace("lanes[1].logits", "q").replace(", scale, bias)", ", scale)")
    head, body = re.sub(r"probe\.(p\d)", r"noted_\1", source).split(":\n", 1)
    return f"{head}:\n{body.replace('bias', 'p').replace('prev', 'draft')}"


def steps(seed: int, count: int) -> list[StepValues]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        history = rng.integers(0, V, rng.integers(1, 9))
        others = {name: (rng.integers(0, 16, V) / 16).astype(np.float32) for name in ("p", "q")}
        made.append(
            StepValues(
                vocab_size=V,
                logits=(rng.integers(-24, 24, V) / 4).astype(np.float32),
                key=int(rng.integers(2**62)),
                step=int(rng.integers(20)),
                history=history,
                counts=np.bincount(history, minlength=V),
                others={**others, "draft": np.asarray(rng.integers(-1, V))},
            )
        )
    return made


def batched(values: list[StepValues], parameters: dict[str, Any], state: Any) -> BatchValues:
    longest = max(len(one.history) for one in values)
    history = np.full((len(values), longest), -1, dtype=np.int64)
    for row, one in enumerate(values):
        history[row, : len(one.history)] = one.history
    return BatchValues(
        lanes=[torch.from_numpy(np.stack([np.asarray(one.logits) for one in values]))],
        keys=torch.tensor([one.key for one in values]),
        steps=torch.tensor([one.step for one in values]),
        history=torch.from_numpy(history),
        lengths=torch.tensor([len(one.history) for one in values]),
        counts=torch.from_numpy(np.stack([np.asarray(one.counts) for one in values])),
        parameters={name: torch.full((len(values), 1), value) for name, value in parameters.items()},
        state=state,
        others={
            name: torch.from_numpy(np.stack([np.atleast_1d(one.others[name]) for one in values]))
            for name in ("p", "q", "draft")
        },
    )


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(source=exact_programs(), seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_random_rules_judge_alike_in_both_forms(source: str, seed: int, count: int) -> None:
    parameters = {"scale": 0.75}
    try:
        program = bind_verifier(judging(source), parameters, V)
    except ProgramInvalid as error:
        assume("values" not in error.message and "deep" not in error.message)
        raise
    torch_program = TorchProgram(program.graph, V, CPU)
    expected_state = [first_state(program.graph, program.parameters, V) for _ in range(count)]
    state = torch_program.first_state(batched(steps(0, count), parameters, {}).parameters, count)
    for turn in range(2):
        values = steps(seed + turn, count)
        result = torch_program.run(batched(values, parameters, state))
        state = result.state
        assert result.tokens is not None
        for row, one in enumerate(values):
            expected = run(program.graph, one, program.parameters, expected_state[row])
            expected_state[row] = dict(expected.state)
            assert int(result.tokens[row]) == expected.token
            for name, value in expected.state.items():
                np.testing.assert_array_equal(state[name][row].numpy(), np.broadcast_to(value, state[name][row].shape))


def drawn(source: str, p: list[float], q: list[float], drafts: list[int]) -> torch.Tensor:
    """What comes of these drafts, a key each."""
    count, size = len(drafts), len(p)
    program = TorchProgram(bind_verifier(source, {}, size).graph, size, CPU)
    result = program.run(
        BatchValues(
            lanes=[torch.tensor([p]).log().expand(count, -1)],
            keys=torch.from_numpy(np.random.default_rng(2).integers(2**62, size=count)),
            others={
                "p": torch.tensor([p]).expand(count, -1),
                "q": torch.tensor([q]).expand(count, -1),
                "draft": torch.tensor(drafts)[:, None],
            },
        )
    )
    assert result.tokens is not None
    return result.tokens


COUNT = 40_000


def near(tokens: torch.Tensor, p: list[float]) -> bool:
    """Whether tokens come as often as they should, by six standard deviations."""
    shares = torch.bincount(tokens, minlength=len(p)).double() / len(tokens)
    wanted = torch.tensor(p, dtype=torch.float64)
    return bool(((shares - wanted).abs() <= 6 * (wanted * (1 - wanted) / len(tokens)).sqrt() + 1e-9).all())


P, Q = [0.5, 0.25, 0.125, 0.125, 0.0], [0.1, 0.2, 0.3, 0.2, 0.2]


def test_rejection_keeps_the_distribution_whatever_guesses_are_drawn_from() -> None:
    guesses = np.random.default_rng(1).choice(5, size=COUNT, p=Q).tolist()
    tokens = drawn(REJECTION, P, Q, guesses)
    assert near(tokens, P)
    stood = (tokens == torch.tensor(guesses)).double().mean()
    assert stood > sum(min(p, q) for p, q in zip(P, Q, strict=True)) - 0.02


def test_rejection_draws_from_what_the_model_says_where_nothing_is_guessed() -> None:
    assert near(drawn(REJECTION, P, [0.0] * 5, [-1] * COUNT), P)


def test_rejection_of_a_guess_that_was_not_drawn_keeps_the_distribution_too() -> None:
    assert near(drawn(REJECTION, P, [0.0, 1.0, 0.0, 0.0, 0.0], [1] * COUNT), P)


def test_a_guess_from_the_very_distribution_always_stands() -> None:
    guesses = np.random.default_rng(1).choice(5, size=COUNT, p=P).tolist()
    assert drawn(REJECTION, P, P, guesses).tolist() == guesses


def test_greedy_takes_what_is_expected_most() -> None:
    assert drawn(GREEDY, P, Q, [0, 1, 2, -1]).tolist() == [0] * 4


def test_a_rule_is_no_sampler_and_the_other_way_round() -> None:
    with pytest.raises(ProgramInvalid, match="`verify` judges guesses"):
        bind_sampler(GREEDY, {}, V)
    with pytest.raises(ProgramInvalid, match="`sample` draws tokens"):
        bind_verifier("def sample(logits):\n    return argmax(logits)\n", {}, V)
    assert bind_drawer(GREEDY, {}, V).function == "verify"


def test_a_rule_has_fewer_values_than_a_sampler() -> None:
    source = "def verify(p):\n    for i in range(300):\n        p = p * 0.5 + i\n    return argmax(p)\n"
    with pytest.raises(ProgramInvalid, match="256 are allowed"):
        bind_verifier(source, {}, V)


REFUSED: dict[str, tuple[str, int, int, str]] = {
    "a number for a token": ("def verify(p):\n    return max(p)\n", 2, 12, "the token that comes, i64; this is f32"),
    "a probe": ("def verify(p):\n    probe.x = max(p)\n    return 1\n", 2, 5, "notes nothing down"),
    "lanes": ("def verify(p):\n    return argmax(lanes[0].logits)\n", 2, 19, "does not know `lanes`"),
    "an input not asked for": ("def verify(p):\n    return draft\n", 2, 12, "`draft` must be a parameter"),
    "a default of an input": ("def verify(q=1):\n    return 1\n", 1, 14, "comes from the step"),
}


@pytest.mark.parametrize(("source", "line", "column", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_rule_is_refused_with_its_place(source: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(ProgramInvalid) as caught:
        bind_verifier(source, {}, V)
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
