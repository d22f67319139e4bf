"""The engine's embeddings are those of `transformers`, however the prompt's work is cut, shared or interrupted.

Torch's step computes in float32; its embeddings may differ from those of `transformers` in the last bits, which is at
most 1e-5 of the states' standard deviation here. The native step rounds: the angle between the two says by how much.
A relative error of 2 % (int8: 6 %, see tests/native/test_step.py) in the mean square lowers the cosine by half of its
square, 0.0002 (0.0018); five times that is allowed, as a single state may be further off than the mean.
The native step must give the same bytes in every schedule. Torch's float32 differs in the last bits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel

from engine.errors import InvalidRequest
from engine.loop import EngineLoop
from engine.request import ConstraintKind, ConstraintSpec, FinishReason, GenerateRequest, Pooling
from engine.sampling.params import SamplingParams
from tests.equivalence.harness import NATIVE_STEPS, STEPS, Step, collect, needs_native, open_loop, request, run_events
from tests.tiny_models import FAMILIES, Family, write_tiny_model

LENGTHS = (1, 5, 17, 40, 70, 33)
TURNED = {"native": 0.001, "int8": 0.01}
"""By how much the cosine may fall short of 1."""

Vector = npt.NDArray[np.float32]


def embedding_request(name: str, prompt_ids: Sequence[int], pooling: Pooling) -> GenerateRequest:
    """Asks for the embedding of token ids."""
    sampling = SamplingParams(max_tokens=0)
    return GenerateRequest(request_id=name, prompt_ids=list(prompt_ids), sampling=sampling, pooling=pooling)


def prompts() -> list[list[int]]:
    """One of each length."""
    source = random.Random(3)
    return [[source.randrange(400) for _ in range(length)] for length in LENGTHS]


def requests() -> list[GenerateRequest]:
    """Every prompt, pooled both ways."""
    return [
        embedding_request(f"{pooling}{at}", ids, pooling) for at, ids in enumerate(prompts()) for pooling in Pooling
    ]


def embed(loop: EngineLoop, asked: Sequence[GenerateRequest]) -> dict[str, Vector]:
    """Submits all at once and returns their embeddings; each comes in one event and without tokens."""
    events = run_events(loop, asked)
    assert sorted(event.request_id for event in events) == sorted(each.request_id for each in asked)
    assert all(event.error is None and not event.token_ids for event in events)
    assert all(event.finish_reason is FinishReason.LENGTH for event in events)
    found: dict[str, Vector] = {}
    for event in events:
        assert event.embedding is not None
        found[event.request_id] = np.frombuffer(event.embedding, "<f4")
        assert found[event.request_id].shape == (loop.info.hidden_size,)
    return found


def expected_of(model: Path, ids: Sequence[int]) -> dict[Pooling, npt.NDArray[np.float64]]:
    """What `transformers` finds."""
    reference = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = reference(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    return {Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1]}


def turn(found: Vector, expected: npt.NDArray[np.float64]) -> float:
    """One less the cosine between two vectors."""
    return float(1 - found @ expected / np.linalg.norm(found.astype(np.float64)) / np.linalg.norm(expected))


def check_equal(found: dict[str, Vector], expected: dict[str, Vector], step: Step) -> None:
    """The same bytes, or in torch the same numbers but for their last bits."""
    assert found.keys() == expected.keys()
    for name, vector in found.items():
        if step == "torch":
            np.testing.assert_allclose(vector, expected[name], atol=1e-5 * float(expected[name].std()), rtol=0)
        else:
            assert vector.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_of_each_family_embeds_as_transformers_does(family: Family, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, family, seed=4)
    with open_loop(model, max_batch_tokens=32) as loop:
        found = embed(loop, requests())
    for at, ids in enumerate(prompts()):
        for pooling, expected in expected_of(model, ids).items():
            assert np.abs(found[f"{pooling}{at}"] - expected).max() < 1e-5 * expected.std()


@pytest.mark.parametrize("step", NATIVE_STEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_step_embeds_as_transformers_does_but_for_rounding(
    family: Family, step: Step, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path, family, seed=4)
    with open_loop(model, step=step, max_batch_tokens=32) as loop:
        found = embed(loop, requests())
    for at, ids in enumerate(prompts()):
        for pooling, expected in expected_of(model, ids).items():
            assert turn(found[f"{pooling}{at}"], expected) < TURNED[step]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("qwen3"), "qwen3", seed=1)


@pytest.fixture(scope="module", params=STEPS)
def step(request: pytest.FixtureRequest) -> Step:
    found: Step = request.param
    return found


@pytest.fixture(scope="module")
def alone(model: Path, step: Step) -> dict[str, Vector]:
    """Every embedding alone, in one chunk, without cache or overlap."""
    found: dict[str, Vector] = {}
    with open_loop(model, step=step, prefix_cache=False, overlap=False) as loop:
        for each in requests():
            found |= embed(loop, [each])
    return found


def test_batched_equals_alone(model: Path, step: Step, alone: dict[str, Vector]) -> None:
    with open_loop(model, step=step) as loop:
        check_equal(embed(loop, requests()), alone, step)


@pytest.mark.parametrize("overlap", [False, True])
def test_chunked_equals_whole(model: Path, step: Step, alone: dict[str, Vector], overlap: bool) -> None:
    with open_loop(model, step=step, prefix_cache=False, max_batch_tokens=16, overlap=overlap) as loop:
        check_equal(embed(loop, requests()), alone, step)


def test_preempted_equals_undisturbed(model: Path, step: Step, alone: dict[str, Vector]) -> None:
    beside = [request(f"chat{at}", range(at, at + 20), max_tokens=40) for at in range(4)]
    with open_loop(model, step=step, num_pages=9, max_batch_tokens=16) as loop:
        events = run_events(loop, [*beside, *requests()])
        found = {
            event.request_id: np.frombuffer(event.embedding, "<f4") for event in events if event.embedding is not None
        }
        check_equal(found, alone, step)
        assert loop.stats.num_preemptions > 0


def test_the_cache_serves_the_last_token_and_never_hides_what_the_mean_needs(
    model: Path, step: Step, alone: dict[str, Vector]
) -> None:
    with open_loop(model, step=step) as loop:
        embed(loop, requests())
        before = loop.stats.num_cached_tokens
        last = [each for each in requests() if each.pooling is Pooling.LAST]
        check_equal(embed(loop, last), {each.request_id: alone[each.request_id] for each in last}, step)
        num_cached = loop.stats.num_cached_tokens - before
        assert num_cached == sum((length - 1) // 16 * 16 for length in LENGTHS)
        mean = [each for each in requests() if each.pooling is Pooling.MEAN]
        check_equal(embed(loop, mean), {each.request_id: alone[each.request_id] for each in mean}, step)
        assert loop.stats.num_cached_tokens - before == num_cached


@needs_native
def test_64_embeddings_beside_8_streams_change_no_token_of_them(model: Path) -> None:
    streams = [request(f"s{at}", range(at, at + 9), temperature=0.8, seed=at, max_tokens=30) for at in range(8)]
    source = random.Random(1)
    others = [
        embedding_request(f"e{at}", [source.randrange(400) for _ in range(source.randint(1, 90))], pooling)
        for at, pooling in enumerate([*Pooling] * 32)
    ]
    with open_loop(model, step="native", max_batch_tokens=64) as loop:
        undisturbed = collect(run_events(loop, streams))
        disturbed = collect(run_events(loop, [*streams[:4], *others, *streams[4:]]))
    assert {key: tokens for key, tokens in disturbed.items() if key[0].startswith("s")} == undisturbed
    assert len(disturbed) == 72


@pytest.mark.parametrize("num_steps", range(4))
def test_an_aborted_embedding_frees_its_pages(model: Path, num_steps: int) -> None:
    with open_loop(model, prefix_cache=False, max_batch_tokens=16) as loop:
        for pooling in Pooling:
            loop.submit(embedding_request(pooling, range(70), pooling))
        for _ in range(num_steps):
            assert not loop.step()
        for pooling in Pooling:
            loop.abort(pooling)
        while loop.has_work:
            assert not loop.step()
        assert loop.stats.num_used_pages == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SamplingParams(max_tokens=1)},
        {"n": 2},
        {"prompt_logprobs": 0},
        {"constraint": ConstraintSpec(kind=ConstraintKind.JSON_OBJECT)},
    ],
)
def test_an_embedding_of_more_than_a_prompt_is_refused(model: Path, fields: dict[str, object]) -> None:
    base = {"request_id": "r", "prompt_ids": [1], "sampling": SamplingParams(max_tokens=0), "pooling": Pooling.MEAN}
    with open_loop(model) as loop, pytest.raises(InvalidRequest) as refused:
        loop.submit(GenerateRequest(**{**base, **fields}))  # type: ignore[arg-type]
    assert refused.value.param == "pooling"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_embeds_as_transformers_does(model: Path) -> None:
    with open_loop(model, device="cuda", max_batch_tokens=32) as loop:
        found = embed(loop, requests())
    for at, ids in enumerate(prompts()):
        for pooling, expected in expected_of(model, ids).items():
            assert turn(found[f"{pooling}{at}"], expected) < 1e-5
