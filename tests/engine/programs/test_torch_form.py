"""The torch form against the meaning: many requests in one call, each as if alone."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.programs.binding import BoundProgram, bind
from engine.programs.errors import ProgramInvalid
from engine.programs.reference import first_state, run
from engine.programs.torch_form import BatchValues, TorchProgram
from engine.programs.values import StepValues
from engine.sampling.params import SamplingParams
from engine.sampling.random import position_keys, stream_key
from engine.sampling.sampler import SampleLane, Sampler
from engine.sampling.state import SamplerState
from tests.engine.programs.random_programs import exact_programs, smooth_programs

V = 70
DEVICE = torch.device(os.environ.get("WYE_TEST_DEVICE", "cpu"))
"""The same tests hold on a GPU: `WYE_TEST_DEVICE=cuda pytest ...`."""


def requests(seed: int, count: int, *, special: bool = True) -> list[StepValues]:
    """Steps of several requests: dyadic logits, some equal, some not finite."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        lanes = [(rng.integers(-24, 24, V) / 4).astype(np.float32) for _ in range(2)]
        if special and rng.integers(2):
            lanes[0][rng.integers(V, size=3)] = [-np.inf, -0.0, np.inf]
        history = rng.integers(0, V, rng.integers(1, 9))
        made.append(
            StepValues(
                vocab_size=V,
                logits=lanes[0],
                lanes=lanes,
                key=int(rng.integers(2**63, dtype=np.uint64)) * 2 + 1,
                step=int(rng.integers(20)),
                history=history,
                counts=np.bincount(history, minlength=V),
            )
        )
    return made


def there(values: Any) -> torch.Tensor:
    """On the device that is tested."""
    return torch.as_tensor(values, device=DEVICE)


def batched(steps: list[StepValues], parameters: list[dict[str, Any]], state: Any = None) -> BatchValues:
    longest = max(len(step.history) for step in steps)
    history = np.full((len(steps), longest), -1, dtype=np.int64)
    for row, step in enumerate(steps):
        history[row, : len(step.history)] = step.history
    return BatchValues(
        lanes=[there(np.stack([step.lanes[lane] for step in steps])) for lane in range(2)],
        keys=there([step.key - 2**64 if step.key >= 2**63 else step.key for step in steps]),
        steps=there([step.step for step in steps]),
        history=there(history),
        lengths=there([len(step.history) for step in steps]),
        counts=there(np.stack([_there(step.counts) for step in steps])),
        parameters={
            name: there(np.stack([np.atleast_1d(np.asarray(one[name], np.float32)) for one in parameters]))
            for name in parameters[0]
        },
        state=state or {},
    )


def drawn(program: TorchProgram, values: BatchValues) -> list[int]:
    """Tokens of one step."""
    tokens = program.run(values).tokens
    assert tokens is not None
    found: list[int] = tokens.tolist()
    return found


def _there(values: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    assert values is not None
    return values


def bound(source: str, seed: int, count: int) -> list[BoundProgram]:
    rng = np.random.default_rng(seed)
    return [
        bind(source, {"scale": float(rng.integers(-8, 8) / 4), "bias": (rng.integers(-8, 8, V) / 4).tolist()}, V)
        for _ in range(count)
    ]


def compare(source: str, seed: int, count: int, *, exact: bool) -> None:
    try:
        programs = bound(source, seed, count)
    except ProgramInvalid as error:
        # The generator does not count values or depth.
        assume("values" not in error.message and "deep" not in error.message)
        raise
    torch_program = TorchProgram(programs[0].graph, V, DEVICE)
    parameters = [dict(program.parameters) for program in programs]
    expected_state = [first_state(program.graph, program.parameters, V) for program in programs]
    state = torch_program.first_state(batched(requests(0, count), parameters).parameters, count)
    for turn in range(2):
        steps = requests(seed + turn, count, special=exact)
        result = torch_program.run(batched(steps, parameters, state))
        state = result.state
        for row, (program, step) in enumerate(zip(programs, steps, strict=True)):
            expected = run(program.graph, step, program.parameters, expected_state[row])
            expected_state[row] = dict(expected.state)
            assert result.tokens is not None
            assert int(result.tokens[row]) == expected.token
            for name, value in {**expected.probes, **expected.state}.items():
                found = (result.probes if name in result.probes else result.state)[name][row].cpu().numpy()
                if exact:
                    np.testing.assert_array_equal(found, np.broadcast_to(value, found.shape), name)
                else:
                    wanted = np.broadcast_to(value, found.shape)
                    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6, err_msg=name)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(source=exact_programs(), seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_random_programs_give_the_same_to_the_bit(source: str, seed: int, count: int) -> None:
    compare(source, seed, count, exact=True)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(source=smooth_programs(), seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_random_formulas_give_the_same_within_a_tolerance(source: str, seed: int, count: int) -> None:
    compare(source, seed, count, exact=False)


EDGES = {
    "the lowest number by -1": "(-9223372036854775807 - 1) // (prev * 0 - 1)",
    "what that leaves": "(-9223372036854775807 - 1) % (prev * 0 - 1)",
    "by zero": "prev // (prev * 0)",
    "overflow": "9223372036854775807 * 3 + prev",
    "an int of too much": "int(1e30 * scale) + int(0.0 / (scale - scale))",
    "equal values in order": "argmax(float(rank(vocab // 9)))",
    "negative zero": "argmax(where(vocab == 3, 0.0, -0.0))",
    "all minus infinity": "argmax(logits - 1.0 / 0.0)",
}


@pytest.mark.parametrize("expression", EDGES.values(), ids=EDGES.keys())
def test_at_the_edges_of_numbers_it_gives_the_same(expression: str) -> None:
    head = "def sample(logits, lanes, key, prev, step, history, counts, scale, bias):\n"
    compare(f"{head}    return {expression}\n", 3, 3, exact=True)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_a_request_gets_the_same_alone_and_with_others(width: int) -> None:
    source = (
        "def sample(logits, lanes, key, prev, step, history, counts, scale, bias):\n"
        "    p = softmax(logits * 0.3 + bias)\n"
        "    kept = rank(p) < sum(cumsum(sort(p)) - sort(p) < 0.9)\n"
        "    return gumbel_argmax(where(kept, log(p), -1e30), key)\n"
    )
    programs, steps = bound(source, 5, width), requests(5, width)
    torch_program = TorchProgram(programs[0].graph, V, DEVICE)
    together = drawn(torch_program, batched(steps, [dict(one.parameters) for one in programs]))
    for step, program, token in zip(steps, programs, together, strict=True):
        assert drawn(torch_program, batched([step], [dict(program.parameters)])) == [token]


@pytest.mark.parametrize(
    ("body", "params"),
    [
        ("argmax(logits)", SamplingParams(max_tokens=9, temperature=0.0)),
        ("gumbel_argmax(logits / scale, key)", SamplingParams(max_tokens=9, temperature=0.75)),
        (
            "gumbel_argmax(where(rank(logits) < 5, logits / scale, -1e30), key)",
            SamplingParams(max_tokens=9, top_k=5, temperature=0.75),
        ),
        (
            "gumbel_argmax(where(exp(logits / scale - max(logits / scale)) >= 0.2, logits / scale, -1e30), key)",
            SamplingParams(max_tokens=9, min_p=0.2, temperature=0.75),
        ),
    ],
    ids=["greedy", "temperature", "top_k", "min_p"],
)
@pytest.mark.parametrize("vocab_size", [300, 5000])
def test_it_takes_the_tokens_that_the_sampler_takes(body: str, params: SamplingParams, vocab_size: int) -> None:
    num_rows, position = 16, 12
    logits = there(torch.randn((num_rows, vocab_size), generator=torch.Generator().manual_seed(3)) * 2)
    state = SamplerState(num_rows=num_rows, vocab_size=vocab_size, device=DEVICE)
    for row in range(num_rows):
        state.assign(row, params=params, seed=row, stream=0, prompt_ids=[1], output_ids=[], eos_token_ids=[])
    lanes = [SampleLane(row=row, position=position, num_output=0) for row in range(num_rows)]
    expected = Sampler(state).sample(logits.clone(), lanes).token_ids.tolist()
    streams = there([stream_key(row, 0) for row in range(num_rows)])
    positions = torch.full((num_rows,), position, device=DEVICE)
    keys = position_keys(streams, positions).contiguous().view(torch.int64).view(-1)
    source = f"def sample(logits, key, scale):\n    return {body}\n"
    program = TorchProgram(bind(source, {"scale": 0.75}, vocab_size).graph, vocab_size, DEVICE)
    parameters = {"scale": torch.full((num_rows, 1), 0.75, device=DEVICE)}
    assert drawn(program, BatchValues(lanes=[logits], keys=keys, parameters=parameters)) == expected
