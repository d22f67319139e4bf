"""What rows attend to: what transformers' own attention weights are, and nobody else's step is another one for it."""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.build import build_loop
from engine.config import EngineConfig
from engine.engine import open_engine
from engine.errors import InvalidRequest
from engine.request import AttentionSpec, ProgramSpec, Readout
from engine.sampling.params import SamplingParams
from engine.text.model import TextModel
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions
from extensions.passes import PassLane, draw_from_rows
from extensions.runtime import Runtime
from extensions.stepped import Distribution
from tests.equivalence.harness import STEPS, Step
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used
from tests.equivalence.test_passes import bits
from tests.tiny_models import Family, write_tiny_model

DEVICE = os.environ.get("WYE_TEST_DEVICE", "cpu")
"""The same holds on a GPU: `WYE_TEST_DEVICE=cuda pytest ...`."""

ON_GPU = DEVICE != "cpu"
STEPS_HERE = [pytest.param("torch"), pytest.param("cuda", marks=pytest.mark.gpu)] if ON_GPU else STEPS
FLOAT32_STEPS: list[Step] = ["torch", "cuda"] if ON_GPU else ["torch"]

VOCAB = 400
FEW = Readout(1)
ARGMAX = "def sample(logits):\n    return argmax(logits)\n"
Weights = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


def config_of(model: Path, step: Step, **fields: Any) -> EngineConfig:
    """A small engine on the device of the tests; on a GPU everything is float32."""
    if not ON_GPU:
        return engine_config(model, step, **fields)
    return replace(engine_config(model, "torch", **fields), device=DEVICE, step="cuda" if step == "cuda" else "torch")


@pytest.fixture(params=STEPS_HERE)
async def runtime(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Runtime]:
    """A real engine of few pages in a thread of this process."""
    async with open_engine(build_loop(config_of(model, request.param, num_pages=40))) as engine:
        yield Runtime(engine, TextModel.load(model))
        await no_page_is_used(engine)


def tolerance(runtime: Runtime) -> float:
    """The native step rounds what it multiplies by; scores are from what it has stored."""
    if runtime.info.dtype == "float32":
        return 1e-4
    return 0.12 if runtime.info.dtype == "int8" else 0.03


def reference(
    model: Path, ids: Sequence[int], positions: Sequence[int] | None = None, mask: torch.Tensor | None = None
) -> Weights:
    """[layers, heads, rows, slots], by transformers."""
    transformers = pytest.importorskip("transformers")
    decoder = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    fields: dict[str, Any] = {}
    if positions is not None:
        fields["position_ids"] = torch.tensor([list(positions)])
    if mask is not None:
        fields["attention_mask"] = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        found = decoder(torch.tensor([list(ids)]), output_attentions=True, **fields).attentions
    return torch.stack([one[0] for one in found]).numpy()


async def attended(
    context: LiveContext, tokens: Sequence[int], rows: Sequence[int], spec: AttentionSpec, **fields: Any
) -> list[Weights]:
    """Of rows behind a context, up to its end."""
    (branch,) = context.fork()
    try:
        looked = await branch.look_once(tokens, rows, readout=FEW, attention=spec, **fields)
    finally:
        branch.release()
    length = context.length + len(tokens)
    found = [np.frombuffer(one, "<f4") for one in looked.attention]
    return [np.pad(one, (0, length - len(one))) for one in found]


@pytest.mark.parametrize("step", FLOAT32_STEPS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
async def test_rows_with_masks_attend_as_transformers_says(family: Family, step: Step, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", family, seed=3)
    rng = random.Random(family)
    history, tokens = [rng.randrange(3, VOCAB) for _ in range(23)], [rng.randrange(3, VOCAB) for _ in range(7)]
    positions = [rng.randrange(20, 60) for _ in tokens]
    seen = [[slot for slot in range(23 + row) if rng.random() < 0.7] + [23 + row] for row in range(7)]
    mask = torch.ones(30, 30).tril().bool()
    for row, slots in enumerate(seen):
        mask[23 + row] = False
        mask[23 + row, slots] = True
    weights = reference(model, [*history, *tokens], [*range(23), *positions], mask)
    async with open_engine(build_loop(config_of(model, step))) as engine:
        context = Runtime(engine, TextModel.load(model)).open_context(history)
        shape = {"positions": positions, "sights": [bits(slots, 30) for slots in seen]}
        each = await attended(context, tokens, [0, 3, 6], AttentionSpec(), **shape)
        for found, row in zip(each, [0, 3, 6], strict=True):
            np.testing.assert_allclose(found, weights[:, :, 23 + row].mean((0, 1)), atol=1e-4)
        (some,) = await attended(context, tokens, [5], AttentionSpec(layers=[1], heads=[0, 2], reduce="max"), **shape)
        np.testing.assert_allclose(some, weights[1, [0, 2], 28].max(0), atol=1e-4)
        context.release()
        await no_page_is_used(engine)


async def test_plain_rows_attend_as_transformers_says_in_every_step(runtime: Runtime, model: Path) -> None:
    history, tokens = list(range(5, 45)), [7, 8, 9, 60]
    weights = reference(model, [*history, *tokens])
    context = runtime.open_context(history)
    each = await attended(context, tokens, [0, 1, 3], AttentionSpec())
    for found, row in zip(each, [0, 1, 3], strict=True):
        np.testing.assert_allclose(found, weights[:, :, 40 + row].mean((0, 1)), atol=tolerance(runtime))
        assert found.sum() == pytest.approx(1.0, abs=1e-3)
        assert not found[41 + row :].any()
    (total,) = await attended(context, tokens, [0, 1, 3], AttentionSpec(total=True, reduce="max"))
    wanted = weights[:, :, [40, 41, 43]].max((0, 1)).sum(0)
    np.testing.assert_allclose(total, wanted, atol=3 * tolerance(runtime))
    context.release()


async def test_layers_tell_each_for_itself_what_transformers_says(runtime: Runtime, model: Path) -> None:
    history, tokens = list(range(5, 75)), [7, 8, 9, 60]
    context = runtime.open_context(history)
    await context.prefill()
    context.drop(16, 48)
    mask = torch.ones(74, 74).tril().bool()
    mask[69:, 16:48] = False
    weights = reference(model, [*history, *tokens], mask=mask)
    for spec, wanted in (
        (AttentionSpec(by_layer=True), weights[:, :, 71].mean(1)),
        (AttentionSpec(by_layer=True, layers=[1], heads=[0, 2], reduce="max"), weights[1:2, [0, 2], 71].max(1)),
        (AttentionSpec(by_layer=True, total=True), weights[:, :, [71, 73]].mean(1).sum(1)),
    ):
        found = await by_layers(context, tokens, [1, 3], spec, len(spec.layers) or len(weights))
        assert len(found) == (1 if spec.total else 2)
        width = found[0].shape[1]
        np.testing.assert_allclose(found[0], wanted[:, :width], atol=2 * tolerance(runtime))
        assert not wanted[:, width:].any()
        assert not found[0][:, 16:48].any()
    context.release()


async def by_layers(
    context: LiveContext, tokens: Sequence[int], rows: Sequence[int], spec: AttentionSpec, num_layers: int
) -> list[Weights]:
    """[layers, slots] of each row."""
    (branch,) = context.fork()
    try:
        looked = await branch.look_once(tokens, rows, readout=FEW, attention=spec)
    finally:
        branch.release()
    return [np.frombuffer(one, "<f4").reshape(num_layers, -1) for one in looked.attention]


async def test_layers_of_rows_computed_in_several_steps_add_up(runtime: Runtime, model: Path) -> None:
    history, tokens = list(range(5, 25)), [index % 90 + 3 for index in range(100)]
    weights = reference(model, [*history, *tokens]).mean(1)
    context = runtime.open_context(history)
    spec = AttentionSpec(by_layer=True, total=True)
    (total,) = await by_layers(context, tokens, range(100), spec, len(weights))
    np.testing.assert_allclose(total, weights[:, 20:].sum(1), atol=20 * tolerance(runtime))
    first, last = await by_layers(context, tokens, [0, 99], AttentionSpec(by_layer=True), len(weights))
    np.testing.assert_allclose(first, weights[:, 20, : first.shape[1]], atol=2 * tolerance(runtime))
    np.testing.assert_allclose(last, weights[:, 119], atol=2 * tolerance(runtime))
    context.release()


async def test_what_is_dropped_is_attended_to_no_more(runtime: Runtime, model: Path) -> None:
    history, tokens = list(range(5, 75)), [7, 8]
    context = runtime.open_context(history)
    await context.prefill()
    context.drop(16, 48)
    context.hide(50, 53)
    mask = torch.ones(72, 72).tril().bool()
    mask[69:, 16:48] = mask[69:, 50:53] = False
    weights = reference(model, [*history, *tokens], mask=mask)
    (found,) = await attended(context, tokens, [1], AttentionSpec())
    np.testing.assert_allclose(found, weights[:, :, 71].mean((0, 1)), atol=tolerance(runtime))
    assert not found[16:48].any()
    assert not found[50:53].any()
    context.release()


async def test_rows_computed_in_several_steps_add_up(runtime: Runtime, model: Path) -> None:
    # A step has 64 tokens: 100 rows take two at least.
    history, tokens = list(range(5, 25)), [index % 90 + 3 for index in range(100)]
    weights = reference(model, [*history, *tokens]).mean((0, 1))
    context = runtime.open_context(history)
    (total,) = await attended(context, tokens, range(100), AttentionSpec(total=True))
    np.testing.assert_allclose(total, weights[20:].sum(0), atol=20 * tolerance(runtime))
    first, last = await attended(context, tokens, [0, 99], AttentionSpec())
    np.testing.assert_allclose(first, weights[20], atol=tolerance(runtime))
    np.testing.assert_allclose(last, weights[119], atol=tolerance(runtime))
    context.release()


async def test_a_draw_of_several_lanes_tells_what_each_lanes_last_token_attends_to(
    runtime: Runtime, model: Path
) -> None:
    histories = [list(range(5, 40)), [9, 8, 7, 6]]
    lanes = [runtime.open_context(history) for history in histories]
    options = GenerateOptions(
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        report_tokens=False,
        program=ProgramSpec(source=ARGMAX),
        attention=AttentionSpec(),
    )
    async with await lanes[0].generate(options, beside=lanes[1:]) as generation:
        async for _ in generation:
            pass
    assert [lane.length for lane in lanes] == [36, 5]
    for found, history in zip(generation.attention, histories, strict=True):
        weights = reference(model, history)[:, :, -1].mean((0, 1))
        np.testing.assert_allclose(np.frombuffer(found, "<f4"), weights, atol=tolerance(runtime))
    for lane in lanes:
        lane.release()


async def test_rows_that_a_program_reads_tell_it_too(runtime: Runtime, model: Path) -> None:
    history = list(range(5, 40))
    context = runtime.open_context(history)
    options = replace(drawing(), attention=AttentionSpec())
    drawn = await draw_from_rows([PassLane(context=context, token_ids=[4, 5, 6], rows=[0, 2])], options)
    weights = reference(model, [*history, 4, 5, 6]).mean((0, 1))
    for found, row in zip(drawn.attention, [35, 37], strict=True):
        scores = np.frombuffer(found, "<f4")[: row + 1]
        np.testing.assert_allclose(scores, weights[row, : row + 1], atol=tolerance(runtime))
    assert len(context.token_ids) == 35
    context.release()


def drawing() -> GenerateOptions:
    return GenerateOptions(
        sampling=SamplingParams(max_tokens=1, ignore_eos=True), report_tokens=False, program=ProgramSpec(source=ARGMAX)
    )


def rounding(logprobs: Sequence[float]) -> float:
    """How far float32 takes a log-probability that is summed up in another order, as another number of rows may do.

    Each of the n additions of a sum rounds by at most 2**-24 of it, independently of the others: the sums on the way
    from a token to its log-probability, together N terms, err by 2**-24 sqrt(N) of what is summed, and two orders
    differ by sqrt(2) times that. Three times as much is allowed. What is summed is half as large as logits are apart.
    """
    width, inner, head, num_slots, num_layers = 64, 96, 16, 44, 3  # of the tiny model
    in_layer = 6 * width + inner + head + 2 * num_slots  # two norms, four projections to `width` wide rows; the others
    num_terms = num_layers * in_layer + 2 * width + VOCAB  # the last norm, the logits, and the sum over all tokens
    return 3 * 2**-24 * math.sqrt(2 * num_terms) * (max(logprobs) - min(logprobs)) / 2


async def test_reading_attention_changes_no_bit_of_what_is_computed(runtime: Runtime) -> None:
    history = list(range(5, 45))
    context, other = runtime.open_context(history), runtime.open_context([30, 31, 32])
    before = await context.next(top=-1)
    alone = await context.look([7, 8], [0, 1], readout=Readout(-1))
    if not ON_GPU:
        for found, wanted in zip(await looked_with_attention(context), alone, strict=True):
            assert list(found.logprobs) == list(wanted.logprobs)
    beside = asyncio.create_task(go_on(other, asked(max_tokens=40)))
    # A row's bits depend on how many are beside it, but in the native step.
    exact = runtime.info.step not in ("torch", "cuda")
    close = 0.0 if exact else 1e-4 if ON_GPU else rounding(before.logprobs)
    for found, wanted in zip(await looked_with_attention(context), alone, strict=True):
        np.testing.assert_allclose(found.logprobs, wanted.logprobs, rtol=0, atol=close)
    after = await context.next(top=-1)
    np.testing.assert_allclose(after.logprobs, before.logprobs, rtol=0, atol=close)
    fresh = runtime.open_context([30, 31, 32])
    assert await beside == await go_on(fresh, asked(max_tokens=40))
    for one in (context, other, fresh):
        one.release()


async def looked_with_attention(context: LiveContext) -> Sequence[Distribution]:
    """The distributions of two rows whose attention is read too."""
    (branch,) = context.fork()
    try:
        return (await branch.look_once([7, 8], [0, 1], readout=Readout(-1), attention=AttentionSpec())).distributions
    finally:
        branch.release()


REFUSED: dict[str, tuple[AttentionSpec, str]] = {
    "a layer that is not there": (AttentionSpec(layers=[7]), "layers are numbered from 0 to"),
    "a head twice": (AttentionSpec(heads=[1, 1]), "each named once"),
}


@pytest.mark.parametrize(("spec", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_read_is_refused_before_any_work(runtime: Runtime, spec: AttentionSpec, text: str) -> None:
    context = runtime.open_context([5, 6, 7])
    with pytest.raises(InvalidRequest, match=text):
        await attended(context, [8], [0], spec)
    assert context.token_ids == [5, 6, 7]
    context.release()


async def test_more_numbers_than_one_answer_may_have_are_refused(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.forward.attended.MAX_SCORES", 30)
    context = runtime.open_context([5, 6, 7])
    with pytest.raises(InvalidRequest, match="at most 30 are read"):
        await attended(context, [8, 9, 10, 11, 12], [0, 1, 2, 3, 4], AttentionSpec())
    assert len(await attended(context, [8, 9, 10, 11, 12], [0, 1, 2, 3, 4], AttentionSpec(total=True))) == 1
    num_layers = runtime.info.num_layers
    monkeypatch.setattr("engine.forward.attended.MAX_SCORES", 4 * num_layers - 1)
    assert len(await attended(context, [8], [0], AttentionSpec())) == 1
    assert len(await attended(context, [8], [0], AttentionSpec(by_layer=True, layers=[0]))) == 1
    with pytest.raises(InvalidRequest, match=f"1 rows in {num_layers} layers would be {4 * num_layers} numbers"):
        await attended(context, [8], [0], AttentionSpec(by_layer=True))
    context.release()


async def test_a_server_may_do_without(model: Path) -> None:
    config = replace(config_of(model, "torch"), attention_scores="off")
    async with open_engine(build_loop(config)) as engine:
        assert not engine.info.reads_attention
        context = Runtime(engine, TextModel.load(model)).open_context([5, 6, 7])
        with pytest.raises(InvalidRequest, match="cannot be read here"):
            await attended(context, [8], [0], AttentionSpec())
        context.release()
        await no_page_is_used(engine)
