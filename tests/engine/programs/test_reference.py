"""The meaning of each operation, on numbers that one can work out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.programs.binding import bind
from engine.programs.reference import first_state, run
from engine.programs.values import StepValues
from engine.sampling.random import UNIFORM_SCALE, mix64, stream_key, uniform_bits

LOGITS = [0.5, -1.0, 3.0, 3.0, float("-inf"), 2.0]
GAMMA = 0x9E3779B97F4A7C15


def values(**changes: Any) -> StepValues:
    fields: dict[str, Any] = {
        "vocab_size": 6,
        "logits": np.array(LOGITS, dtype=np.float32),
        "lanes": (np.arange(6, dtype=np.float32), -np.arange(6, dtype=np.float32)),
        "key": mix64(99),
        "step": 4,
        "history": np.array([5, 1, 1, 2]),
        "counts": np.array([0, 2, 1, 0, 0, 0]),
    }
    return StepValues(**(fields | changes))


def probe(expression: str, before: str = "", **changes: Any) -> Any:
    source = (
        f"def sample(logits, lanes, key, prev, step, history, places, counts):\n    {before or 'pass'}\n"
        f"    probe.x = {expression}\n    return 1\n"
    )
    found = run(bind(source, {}, 6).graph, values(**changes), {})
    return found.probes["x"].tolist()


MEANINGS: dict[str, Any] = {
    "7 // 2": 3,
    "-7 // 2": -4,
    "7 // 0": 0,
    "-7 % 3": 2,
    "7 % 0": 0,
    "7 / 2": 3.5,
    "2 ** 3": 8.0,
    "True + True": 2,
    "9223372036854775807 + 1": -(2**63),
    "5 & 6": 4,
    "5 ^ 6": 3,
    "not (1 > 2)": True,
    "1 < 2 < 2": False,
    "1 < 2 and 2 < 3 or 1 > 2": True,
    "floor(-1.5)": -2.0,
    "int(-1.5)": -1,
    "int(0.0 / 0.0)": 0,
    "int(1.0 / 0.0)": 2**62,
    "float(3)": 3.0,
    "abs(-3)": 3,
    "clamp(counts, 1, 1)": [1, 1, 1, 1, 1, 1],
    "sum(counts)": 3,
    "sum(logits > 0)": 4,
    "sum(history)": 9,
    "max(history)": 5,
    "min(history)": 1,
    "max(logits)": 3.0,
    "min(logits)": -math.inf,
    "max(prev, 3)": 3,
    "prev": 2,
    "step": 4,
    "history[-1] * 100 + history[-4]": 205,
    "history[-5]": -1,
    "argmax(logits)": 2,
    "argmax(0.0 / (logits - 3.0))": 0,
    "sort(counts)": [2, 1, 0, 0, 0, 0],
    "rank(logits)": [3, 4, 0, 1, 5, 2],
    "rank(counts)": [2, 0, 1, 3, 4, 5],
    "cumsum(counts)": [0, 2, 3, 3, 3, 3],
    "sum(gather(logits, history))": 3.0,
    "gather(logits, 17)": 0.0,
    "gather(logits, -1)": 0.0,
    "scatter(counts, history, 9)": [0, 9, 9, 0, 0, 9],
    "scatter_max(counts, history, history)": [0, 2, 2, 0, 0, 5],
    "scatter_max(counts, 9, 3)": [0, 2, 1, 0, 0, 0],
    "scatter_max(counts, 1, 1.5)": [0.0, 2.0, 1.0, 0.0, 0.0, 0.0],
    "scatter_max(logits > 0, 1, True)": [True, True, True, True, False, True],
    "scatter(counts, 3, 7)": [0, 2, 1, 7, 0, 0],
    "scatter(counts, -1, 7)": [0, 2, 1, 0, 0, 0],
    "scatter(counts, counts, vocab)": [5, 2, 1, 0, 0, 0],
    "sum(places * history)": 9,
    "sum(shift(history, 1) * history)": 3,
    "sum(shift(history, 0) * history)": 31,
    "sum(shift(history, 9))": -4,
    "sum(shift(history == 1, 1))": 2,
    "sum(shift(gather(logits, history), 2))": 1.0,
    "one_hot(prev)": [False, False, True, False, False, False],
    "one_hot(-1)": [False] * 6,
    "vocab": [0, 1, 2, 3, 4, 5],
    "vocab_size": 6,
    "zeros(logits)": [0.0] * 6,
    "lanes[0].logits - lanes[1].logits": [0.0, 2.0, 4.0, 6.0, 8.0, 10.0],
    "where(logits > 1, vocab, -1)": [-1, -1, 2, 3, -1, 5],
}


@pytest.mark.parametrize(("expression", "expected"), MEANINGS.items(), ids=MEANINGS.keys())
def test_an_expression_means(expression: str, expected: Any) -> None:
    found = probe(expression)
    assert found == expected


def test_topk_gives_values_and_places_lower_first_among_equals() -> None:
    assert probe("v", "v, i = topk(logits, 3)") == [3.0, 3.0, 2.0]
    assert probe("i", "v, i = topk(logits, 3)") == [2, 3, 5]


def test_probabilities_are_those_of_the_formula() -> None:
    weights = [math.exp(one) for one in LOGITS]
    expected = [one / sum(weights) for one in weights]
    assert probe("softmax(logits)") == pytest.approx(expected, rel=1e-6)
    assert probe("entropy(logits)") == pytest.approx(-sum(p * math.log(p) for p in expected if p), rel=1e-6)
    found = probe("log_softmax(logits)")
    assert found[4] == -math.inf
    del found[4], expected[4]
    assert found == pytest.approx([math.log(p) for p in expected], rel=1e-6)


def test_numbers_drawn_are_those_of_the_keyed_generator() -> None:
    seed, stream, position = 7, 2, 11
    key = mix64(stream_key(seed, stream) + (position + 1) * GAMMA)
    expected = [
        np.float32(uniform_bits(seed, stream, position, token)) * np.float32(UNIFORM_SCALE) for token in range(6)
    ]
    assert probe("uniform(key, logits)", key=key) == [float(one) for one in expected]
    assert probe("uniform(key)", key=key) == float(expected[0])


def test_draws_of_one_step_are_different_and_repeat() -> None:
    first, second = probe("uniform(key)"), probe("uniform(key)", before="probe.other = uniform(key)")
    assert first != second
    assert (first, second) == (probe("uniform(key)"), probe("uniform(key)", before="probe.other = uniform(key)"))
    assert 0 < first < 1


def test_a_hash_depends_on_its_two_numbers_alone() -> None:
    one = probe("hash_uniform(prev, vocab)")
    assert one == probe("hash_uniform(prev, vocab)", key=5, step=9)
    assert len(set(one)) == 6
    assert one != probe("hash_uniform(prev + 1, vocab)")
    assert one[3] == probe("hash_uniform(prev, 3)")
    assert abs(np.mean(probe_many()) - 0.5) < 0.02


def probe_many() -> Any:
    source = "def sample(logits):\n    probe.x = hash_uniform(5, vocab)\n    return 1\n"
    step = StepValues(vocab_size=4096, logits=np.zeros(4096, dtype=np.float32))
    return run(bind(source, {}, 4096).graph, step, {}).probes["x"]


def test_a_draw_follows_the_distribution() -> None:
    source = "def sample(logits, key):\n    return gumbel_argmax(logits, key)\n"
    graph = bind(source, {}, 6).graph
    weights = np.exp(np.array(LOGITS))
    counts = np.bincount([run(graph, values(key=mix64(at)), {}).token for at in range(3000)], minlength=6)
    assert counts[4] == 0
    np.testing.assert_allclose(counts / 3000, weights / weights.sum(), atol=0.03)


def test_a_draw_by_probabilities_is_the_draw_by_their_logarithms() -> None:
    one = bind("def sample(logits, key):\n    return categorical(softmax(logits), key)\n", {}, 6).graph
    other = bind("def sample(logits, key):\n    return gumbel_argmax(log(softmax(logits)), key)\n", {}, 6).graph
    for at in range(50):
        step = values(key=mix64(at))
        assert run(one, step, {}).token == run(other, step, {}).token


def test_a_draw_of_nothing_possible_is_token_zero() -> None:
    source = "def sample(logits, key):\n    return gumbel_argmax(logits / 0.0 * 0.0, key)\n"
    assert run(bind(source, {}, 6).graph, values(), {}).token == 0


MIROSTAT = """
state.mu = 10.0
state.seen = zeros(vocab)

def sample(logits, key, tau, rate):
    surprise = -log_softmax(logits) / log(2.0)
    token = gumbel_argmax(where(surprise < state.mu, logits, -1e30), key)
    state.mu = state.mu - rate * (gather(surprise, token) - tau)
    state.seen += one_hot(token)
    return token
"""


def test_state_is_carried_from_step_to_step() -> None:
    bound = bind(MIROSTAT, {"tau": 3.0, "rate": 0.1}, 6)
    state = first_state(bound.graph, bound.parameters, 6)
    assert state["mu"] == 10.0
    assert state["seen"].tolist() == [0.0] * 6
    tokens = []
    mu = 10.0
    surprise = -np.array(LOGITS) / math.log(2) + math.log2(np.exp(np.array(LOGITS)).sum())
    for at in range(5):
        found = run(bound.graph, values(key=mix64(at)), bound.parameters, state)
        tokens.append(found.token)
        mu -= 0.1 * (surprise[found.token] - 3.0)
        state = dict(found.state)
        assert state["mu"] == pytest.approx(mu, rel=1e-5)
    assert state["seen"].tolist() == [float(tokens.count(token)) for token in range(6)]


def test_a_loop_is_unrolled() -> None:
    source = "def sample(logits):\n    x = 0\n    for i in range(2, 10, 3):\n        x = x * 10 + i\n    return x\n"
    assert run(bind(source, {}, 6).graph, values(), {}).token == 258
