"""Rows with positions and sights of their own: trees are what their paths are alone, masks what another model makes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.build import build_loop
from engine.engine import open_engine
from engine.errors import InvalidRequest
from engine.programs.binding import bind
from engine.programs.reference import run
from engine.programs.values import StepValues
from engine.request import ProgramSpec, Readout
from engine.sampling.params import SamplingParams
from engine.sampling.random import mix64, stream_key
from engine.text.model import TextModel
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions
from extensions.passes import PassLane, draw_from_rows
from extensions.runtime import Runtime
from extensions.stepped import Distribution
from tests.equivalence.harness import STEPS
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used, plain
from tests.tiny_models import write_tiny_model

WHOLE = Readout(-1)
VOCAB = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(params=STEPS)
async def runtime(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Runtime]:
    """A real engine of few pages in a thread of this process."""
    async with open_engine(build_loop(engine_config(model, request.param, num_pages=40))) as engine:
        yield Runtime(engine, TextModel.load(model))
        await no_page_is_used(engine)


def bits(slots: Sequence[int], length: int) -> bytes:
    row = np.zeros(length, dtype=bool)
    row[list(slots)] = True
    return np.packbits(row, bitorder="little").tobytes()


def close(runtime: Runtime, found: Distribution, wanted: Distribution) -> None:
    """The same numbers, up to what another order of sums makes of them."""
    tolerance = 1e-4 if runtime.info.step == "torch" else 0.05
    assert list(found.logprobs) == pytest.approx(list(wanted.logprobs), abs=tolerance)
    assert found.entropy == pytest.approx(wanted.entropy, abs=tolerance)


async def behind(runtime: Runtime, history: Sequence[int]) -> Distribution:
    """From a context that nobody computed on before."""
    context = runtime.open_context(history, salt=str(random.random()))
    try:
        return await context.next(top=-1)
    finally:
        context.release()


async def test_rows_without_a_shape_are_what_fresh_histories_give(runtime: Runtime) -> None:
    history = list(range(5, 60))
    context = runtime.open_context(history)
    found = await context.look([7, 8, 9, 10], [0, 1, 3], readout=WHOLE)
    for row, distribution in zip([0, 1, 3], found, strict=True):
        close(runtime, distribution, await behind(runtime, [*history, *[7, 8, 9, 10][: row + 1]]))
    assert context.token_ids == history
    assert await go_on(context, asked()) == await plain(runtime, history, asked())
    context.release()


@pytest.mark.parametrize("seed", range(4))
async def test_each_row_of_a_random_tree_is_what_its_path_is_alone(runtime: Runtime, seed: int) -> None:
    rng = random.Random(seed)
    history = [rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 17, 50]))]
    tokens = [rng.randrange(3, VOCAB) for _ in range(rng.choice([5, 30]))]
    parents = [rng.randrange(-1, row) for row in range(len(tokens))]
    paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    length, start = len(history) + len(tokens), len(history)
    context = runtime.open_context(history)
    rows = sorted(rng.sample(range(len(tokens)), 4))
    found = await context.look(
        tokens,
        rows,
        positions=[start + len(path) - 1 for path in paths],
        sights=[bits([*range(start), *(start + row for row in path)], length) for path in paths],
        readout=WHOLE,
    )
    for row, distribution in zip(rows, found, strict=True):
        close(runtime, distribution, await behind(runtime, [*history, *(tokens[one] for one in paths[row])]))
    assert await go_on(context, asked()) == await plain(runtime, history, asked())
    context.release()


@pytest.mark.parametrize("seed", range(4))
async def test_random_positions_and_masks_are_what_transformers_makes_of_them(model: Path, seed: int) -> None:
    transformers = pytest.importorskip("transformers")
    rng = random.Random(seed)
    history = [rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 17, 40]))]
    tokens = [rng.randrange(3, VOCAB) for _ in range(rng.choice([3, 24]))]
    start, length = len(history), len(history) + len(tokens)
    positions = [rng.randrange(0, 120) for _ in tokens]
    seen = [[slot for slot in range(start + row) if rng.random() < 0.7] + [start + row] for row in range(len(tokens))]
    async with open_engine(build_loop(engine_config(model, "torch", num_pages=40))) as engine:
        runtime = Runtime(engine, TextModel.load(model))
        context = runtime.open_context(history)
        found = await context.look(
            tokens,
            range(len(tokens)),
            positions=positions,
            sights=[bits(slots, length) for slots in seen],
            readout=WHOLE,
        )
        context.release()
        await no_page_is_used(engine)
    mask = torch.ones(length, length).tril().bool()
    for row, slots in enumerate(seen):
        mask[start + row] = False
        mask[start + row, slots] = True
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits = reference(
            torch.tensor([[*history, *tokens]]),
            position_ids=torch.tensor([[*range(start), *positions]]),
            attention_mask=torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None],
        ).logits[0, start:]
    expected = logits.log_softmax(dim=-1)
    for distribution, wanted in zip(found, expected, strict=True):
        assert list(distribution.logprobs) == pytest.approx(wanted.tolist(), abs=2e-4)


async def test_rows_computed_in_pieces_under_pressure_are_the_same(model: Path) -> None:
    async with open_engine(build_loop(engine_config(model, "torch", num_pages=24))) as engine:
        runtime = Runtime(engine, TextModel.load(model))
        contexts = [runtime.open_context([at + 3, *range(5, 60)]) for at in range(4)]
        # A step has 64 tokens: 100 rows take two at least, beside what others compute.
        tokens = [index % 90 + 3 for index in range(100)]
        sights = [bits([*range(0, 56, 2), *range(56, 57 + row)], 156) for row in range(100)]
        positions = [70 + row for row in range(100)]

        async def looked(context: LiveContext) -> list[Distribution]:
            return await context.look(tokens, [0, 50, 99], positions=positions, sights=sights, readout=WHOLE)

        other = runtime.open_context([9, 9, 9])
        beside = asyncio.create_task(go_on(other, asked(max_tokens=60)))
        together = await asyncio.gather(*[looked(context) for context in contexts])
        await beside
        for context, found in zip(contexts, together, strict=True):
            for one, wanted in zip(found, await looked(context), strict=True):
                close(runtime, one, wanted)
            context.release()
        other.release()
        await no_page_is_used(engine)


async def test_what_was_computed_by_a_shape_is_never_taken_for_the_plain_history(runtime: Runtime) -> None:
    history, tokens = list(range(5, 37)), list(range(40, 72))
    context = runtime.open_context(history)
    await context.look(tokens, [31], positions=[9] * 32, sights=[bits([3], 64)] * 32, readout=WHOLE)
    context.append(tokens)
    assert await go_on(context, asked()) == await plain(runtime, [*history, *tokens], asked())
    context.release()


async def test_distributions_of_rows_are_as_wide_as_asked(runtime: Runtime) -> None:
    context = runtime.open_context([5, 6, 7])
    (few,) = await context.look([8], [0], readout=Readout(3))
    (wide,) = await context.look([8], [0], readout=Readout(1, 0.9))
    assert len(few.token_ids) == 3
    assert 1.0 - wide.omitted_mass >= 0.9
    assert list(few.token_ids) == list(wide.token_ids[:3])
    context.release()


REFUSED: dict[str, dict[str, Any]] = {
    "a row that is not there": {"rows": [2]},
    "rows that fall": {"rows": [1, 0]},
    "too few positions": {"positions": [1]},
    "a negative position": {"positions": [1, -1]},
    "too few rows of a mask": {"sights": [b"\x01"]},
    "a mask wider than the history": {"sights": [b"\x01" * 9] * 2},
    "a strange top": {"readout": Readout(-2)},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_is_refused_before_any_work(runtime: Runtime, fields: dict[str, Any]) -> None:
    context = runtime.open_context([5, 6, 7])
    with pytest.raises(InvalidRequest):
        await context.look([8, 9], **{"rows": [0], "readout": Readout(4), **fields})
    assert not context.is_busy
    assert context.token_ids == [5, 6, 7]
    context.release()


VERIFY = """
def sample(lanes, key, d0, d1, d2):
    t0 = argmax(lanes[0].logits)
    t1 = argmax(lanes[1].logits)
    t2 = argmax(lanes[2].logits)
    a0 = int(t0 == d0)
    a1 = a0 * int(t1 == d1)
    a2 = a1 * int(t2 == d2)
    probe.accepted = a0 + a1 + a2
    best = where(a0 == 0, t0, where(a1 == 0, t1, where(a2 == 0, t2, argmax(lanes[3].logits))))
    return best
"""


def drawing(source: str, **parameters: Any) -> GenerateOptions:
    return GenerateOptions(
        sampling=SamplingParams(max_tokens=1, seed=3, ignore_eos=True),
        report_tokens=False,
        program=ProgramSpec(source=source, parameters=parameters),
    )


@pytest.mark.parametrize("num_right", range(4))
async def test_guesses_are_verified_by_a_program_over_rows(runtime: Runtime, num_right: int) -> None:
    history = list(range(5, 45))
    truth = await plain(runtime, history, asked(max_tokens=4))
    guesses = [token if at < num_right else (token + 1) % VOCAB for at, token in enumerate(truth[:3])]
    context = runtime.open_context(history[:-1])
    lane = PassLane(context=context, token_ids=[history[-1], *guesses], rows=range(4))
    drawn = await draw_from_rows([lane], drawing(VERIFY, d0=guesses[0], d1=guesses[1], d2=guesses[2]))
    token, probes = drawn.token_id, drawn.probes
    assert probes == {"accepted": num_right}
    assert token == truth[num_right]
    assert context.token_ids == history[:-1]
    context.release()


async def test_a_program_draws_from_rows_of_several_contexts(runtime: Runtime) -> None:
    mixed = "lanes[0].logits + lanes[1].logits - lanes[2].logits"
    source = f"def sample(lanes, key):\n    return gumbel_argmax({mixed}, key)\n"
    sights = [bits([0, 1, 2], 4), bits([0, 3], 4)]
    contexts = [runtime.open_context(list(range(5, 60))), runtime.open_context([9, 8])]
    lanes = [
        PassLane(context=contexts[0], token_ids=[7, 8, 9], rows=[0, 2]),
        PassLane(
            context=contexts[1],
            token_ids=[4, 5],
            rows=[1],
            positions=[2, 2],
            sights=sights,
        ),
    ]
    token = (await draw_from_rows(lanes, drawing(source))).token_id
    first = await contexts[0].look([7, 8, 9], [0, 2], readout=WHOLE)
    (second,) = await contexts[1].look([4, 5], [1], positions=[2, 2], sights=sights, readout=WHOLE)
    values = StepValues(
        vocab_size=VOCAB,
        lanes=[np.array(one.logprobs, dtype=np.float32) for one in (*first, second)],
        key=mix64(stream_key(3, 0) + (58 + 1) * 0x9E3779B97F4A7C15),
    )
    assert token == run(bind(source, {}, VOCAB).graph, values, {}, {}).token
    for context in contexts:
        context.release()
