"""Random programs over lanes, batched with each other and with others, against the reference."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.programs.binding import bind
from engine.programs.errors import ProgramInvalid
from engine.programs.reference import first_state, run
from engine.programs.runner import ProgramRunner
from engine.programs.session import ProgramLane, ProgramSession
from engine.programs.values import StepValues
from engine.sampling.random import mix64, stream_key
from tests.engine.programs.random_programs import exact_programs

V = 70
CPU = torch.device("cpu")
GAMMA = 0x9E3779B97F4A7C15


@settings(max_examples=60, deadline=None)
@given(exact_programs(), st.integers(0, 2**32))
def test_a_random_program_over_two_lanes_draws_what_the_reference_draws(source: str, seed: int) -> None:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    scale, bias = 1.5, [float(one) for one in numbers.integers(-8, 8, V) / 4]
    try:
        bound = bind(source, {"scale": scale, "bias": bias}, V)
    except ProgramInvalid:
        assume(False)
        return
    logits = torch.from_numpy((numbers.integers(-24, 24, (8, V)) / 4).astype(np.float32))
    rows = rng.sample(range(8), 8)
    sessions, lanes, expected = [], [], []
    for at in range(4):
        prompt = [rng.randrange(V) for _ in range(rng.randint(1, 9))]
        session = ProgramSession(bound, stream_key(seed + at, 0), len(prompt), 2)
        session.begin(prompt, 16, CPU)
        first, second = rows[2 * at], rows[2 * at + 1]
        sessions.append(session)
        lanes.append(ProgramLane(session, first, len(prompt), (second,)))
        values = StepValues(
            vocab_size=V,
            logits=logits[first].numpy(),
            lanes=[logits[first].numpy(), logits[second].numpy()],
            key=mix64(stream_key(seed + at, 0) + (len(prompt) + 1) * GAMMA),
            step=0,
            history=np.array(prompt),
            counts=np.zeros(V, dtype=np.int64),
        )
        state = first_state(bound.graph, bound.parameters, V)
        found = run(bound.graph, values, bound.parameters, state)
        expected.append(found.token if 0 <= found.token < V else -1)
    drawn = ProgramRunner(V, CPU).run(logits, lanes)
    assert drawn.tokens.tolist() == expected
