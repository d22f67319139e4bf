"""The real model through the native step: what float32 torch says but for near ties, and the same however it is run.

Every token that the native step chose is held against float32 torch reading the same tokens before it. Up to the first
difference these are the tokens that float32 itself would have chosen; after it, each choice is still judged by what
float32 makes of the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.loop import EngineLoop
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import Decoder, load_model
from engine.models.step import StepModel
from engine.native.library import native_status
from engine.request import GenerateRequest, TokenEvent
from engine.sampling.draw import TokenDraw
from engine.sampling.params import SamplingParams
from engine.sampling.random import position_keys, stream_key
from engine.text.model import TextModel
from loadtests.teacher import make_storage, read_window
from tests.engine.models.harness import Lane, run_step, storage_for

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not native_status().available, reason=f"no native step: {native_status().reason}"),
]

NUM_TOKENS = 64
TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far from float32 a format may be; a little more than docs/quality.md shows for longer texts.

    Attributes:
        margin: A choice that float32 likes less than its own by this many logits is not a near tie.
        share: Most tokens of all answers that may differ.
    """

    margin: float
    share: float


BOUNDS = {"bfloat16": Bounds(margin=0.2, share=0.02), "int8": Bounds(margin=1.0, share=0.06)}

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Explain to a child why the sky is blue.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "List the planets of the solar system in order.",
    "Write a short poem about autumn.",
    "What does HTTP stand for?",
    "Translate 'good morning' into Spanish.",
    "How do bees make honey?",
    "Write a Python function that reverses a string.",
    "What is the difference between weather and climate?",
    "Tell me a joke about a cat.",
    "Why do we have leap years?",
    "Suggest a name for a small bakery.",
    "What is the boiling point of water?",
    "Summarise the story of Cinderella in two sentences.",
    "How can I fall asleep more easily?",
)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A token that is not the reference's own choice.

    Attributes:
        question: Which.
        place: Tokens of the answer before it.
        margin: By how much the reference prefers its own, in logits.
    """

    question: int
    place: int
    margin: float


@dataclass(frozen=True, kw_only=True)
class Output:
    """One answer: its tokens, and their log-probabilities to the bit."""

    token_ids: list[int]
    logprobs: list[float]


Outputs = dict[str, Output]


@pytest.fixture(scope="module")
def prompts(real_model_path: Path) -> list[list[int]]:
    text = TextModel.load(real_model_path)
    assert text.chat_template is not None
    rendered = [text.chat_template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    return [text.tokenizer.encode(each, add_special=False) for each in rendered]


@pytest.fixture(scope="module")
def reference(real_model_path: Path) -> Decoder:
    return load_model(open_checkpoint(real_model_path), device="cpu", dtype=torch.float32)


@contextmanager
def open_native(
    model: Path,
    *,
    weights: str = "bfloat16",
    num_pages: int = 256,
    prefix_cache: bool = True,
    max_batch_tokens: int = 512,
    threads: int = 1,
) -> Iterator[EngineLoop]:
    loop = build_loop(
        EngineConfig(
            model=str(model),
            device="cpu",
            weights="int8" if weights == "int8" else "bfloat16",
            step="native",
            seed=0,
            check_integrity=True,
            kv=KVConfig(num_pages=num_pages, prefix_cache=prefix_cache),
            scheduling=SchedulingConfig(max_num_seqs=20, max_batch_tokens=max_batch_tokens),
            parallel=ParallelConfig(num_threads=threads),
        )
    )
    try:
        yield loop
        loop.check_integrity()
    finally:
        loop.close()


def ask(name: str, prompt: list[int], *, temperature: float, num_tokens: int = NUM_TOKENS) -> GenerateRequest:
    params = SamplingParams(
        max_tokens=num_tokens, temperature=temperature, seed=seed_of(name), ignore_eos=True, logprobs=0
    )
    return GenerateRequest(request_id=name, prompt_ids=prompt, sampling=params)


def seed_of(name: str) -> int:
    return 1000 + int(name)


def run(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> Outputs:
    events: list[TokenEvent] = []
    for each in requests:
        loop.submit(each)
    while loop.has_work:
        events += loop.step()
    outputs: Outputs = {}
    for event in events:
        assert event.error is None
        output = outputs.setdefault(event.request_id, Output(token_ids=[], logprobs=[]))
        output.token_ids.extend(event.token_ids)
        output.logprobs.extend(each.logprob for each in event.logprobs)
    assert all(len(output.logprobs) == len(output.token_ids) for output in outputs.values())
    return outputs


def answers(loop: EngineLoop, prompts: Sequence[list[int]], temperature: float) -> list[list[int]]:
    outputs = run(loop, [ask(str(i), prompt, temperature=temperature) for i, prompt in enumerate(prompts)])
    found = [outputs[str(i)].token_ids for i in range(len(prompts))]
    assert [len(tokens) for tokens in found] == [NUM_TOKENS] * len(prompts)
    return found


def answer_logits(model: StepModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """[len(answer), V] float32: what the model says before each token of an answer."""
    token_ids = prompt + answer[:-1]
    storage = make_storage(model.config, len(token_ids), torch.float32)
    return read_window(model, storage, token_ids, len(token_ids))[len(prompt) - 1 :]


def differences(question: int, scores: torch.Tensor, answer: list[int], scale: float) -> list[Chosen]:
    """Where the best score [len(answer), V] is not that of the answer's token."""
    best, chosen = scores.amax(-1), scores.gather(1, torch.tensor(answer)[:, None])[:, 0]
    margins = ((best - chosen) * scale).tolist()
    own = scores.argmax(-1).tolist()
    return [
        Chosen(question=question, place=place, margin=margins[place])
        for place, (ours, theirs) in enumerate(zip(answer, own, strict=True))
        if ours != theirs
    ]


def assert_only_near_ties(found: Sequence[Chosen], num_answers: int, bounds: Bounds) -> None:
    """Lists all margins; fails if one is too large or there are too many."""
    listing = "\n".join(f"  question {each.question}, token {each.place}: {each.margin:.4f}" for each in found)
    whole = num_answers - len({each.question for each in found})
    print(f"\n{len(found)} differences, {whole} of {num_answers} answers without any; margins in logits:\n{listing}")
    beyond = [each for each in found if not each.margin < bounds.margin]
    assert not beyond, f"not near ties: {beyond}"
    assert len(found) <= bounds.share * num_answers * NUM_TOKENS


def gumbel_scores(logits: torch.Tensor, temperature: float, name: str, first_position: int) -> torch.Tensor:
    """What tokens [T, V] compete with at positions from the first on, as the sampler defines it: float64."""
    num_rows, vocab_size = logits.shape
    positions = torch.arange(first_position, first_position + num_rows)
    keys = position_keys(torch.full((num_rows,), stream_key(seed_of(name), 0)), positions)
    ids = torch.arange(vocab_size).expand(num_rows, -1)
    draw = TokenDraw(vocab_size, torch.device("cpu"))
    return draw.score(logits, ids, torch.full((num_rows, 1), temperature), keys)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_greedy_answers_are_those_of_float32_torch_but_for_near_ties(
    real_model_path: Path, prompts: list[list[int]], reference: Decoder, weights: str
) -> None:
    with open_native(real_model_path, weights=weights) as loop:
        found = answers(loop, prompts, 0.0)
    differing: list[Chosen] = []
    for index, (prompt, answer) in enumerate(zip(prompts, found, strict=True)):
        differing += differences(index, answer_logits(reference, prompt, answer), answer, 1.0)
    assert_only_near_ties(differing, len(prompts), BOUNDS[weights])


def test_seeded_answers_are_those_of_float32_torch_but_for_near_ties_of_their_scores(
    real_model_path: Path, prompts: list[list[int]], reference: Decoder
) -> None:
    """A token wins by logit / temperature + noise, its score; margins are of scores, times the temperature."""
    with open_native(real_model_path) as loop:
        found = answers(loop, prompts, TEMPERATURE)
    assert len({tuple(answer) for answer in found}) == len(prompts)
    differing: list[Chosen] = []
    for index, (prompt, answer) in enumerate(zip(prompts, found, strict=True)):
        scores = gumbel_scores(answer_logits(reference, prompt, answer), TEMPERATURE, str(index), len(prompt))
        differing += differences(index, scores, answer, TEMPERATURE)
    assert_only_near_ties(differing, len(prompts), BOUNDS["bfloat16"])


def test_the_scores_that_margins_are_made_of_are_those_the_torch_path_draws_by(
    real_model_path: Path, prompts: list[list[int]], reference: Decoder
) -> None:
    config = EngineConfig(model=str(real_model_path), device="cpu", weights="float32", step="torch", seed=0)
    loop = build_loop(config)
    try:
        found = run(loop, [ask("3", prompts[3], temperature=TEMPERATURE)])["3"].token_ids
    finally:
        loop.close()
    scores = gumbel_scores(answer_logits(reference, prompts[3], found), TEMPERATURE, "3", len(prompts[3]))
    assert scores.argmax(-1).tolist() == found
    assert scores.argmax(-1).tolist() != answer_logits(reference, prompts[3], found).argmax(-1).tolist()


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def stored(request: pytest.FixtureRequest) -> str:
    """Format of the weights."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def requests(prompts: list[list[int]]) -> list[GenerateRequest]:
    return [
        ask(str(index), prompt, temperature=(0.0, TEMPERATURE)[index % 2], num_tokens=32)
        for index, prompt in enumerate(prompts[:8])
    ]


@pytest.fixture(scope="module")
def alone(real_model_path: Path, stored: str, requests: list[GenerateRequest]) -> Outputs:
    """Every request by itself, whole, nothing cached, on one thread."""
    outputs: Outputs = {}
    with open_native(real_model_path, weights=stored, prefix_cache=False) as loop:
        for each in requests:
            outputs |= run(loop, [each])
    return outputs


def test_batched_equals_alone_to_the_bit(
    real_model_path: Path, stored: str, requests: list[GenerateRequest], alone: Outputs
) -> None:
    with open_native(real_model_path, weights=stored, prefix_cache=False) as loop:
        assert run(loop, requests) == alone


def test_two_threads_equal_one_to_the_bit(
    real_model_path: Path, stored: str, requests: list[GenerateRequest], alone: Outputs
) -> None:
    with open_native(real_model_path, weights=stored, prefix_cache=False, threads=2) as loop:
        assert run(loop, requests) == alone


def test_chunked_equals_whole_to_the_bit(
    real_model_path: Path, stored: str, requests: list[GenerateRequest], alone: Outputs
) -> None:
    with open_native(real_model_path, weights=stored, prefix_cache=False, max_batch_tokens=23) as loop:
        assert run(loop, requests) == alone


def test_cached_equals_fresh_to_the_bit(
    real_model_path: Path, stored: str, requests: list[GenerateRequest], alone: Outputs
) -> None:
    with open_native(real_model_path, weights=stored) as loop:
        assert run(loop, requests) == alone
        assert run(loop, requests) == alone
        assert loop.stats.num_cached_tokens > 0


def test_preempted_equals_undisturbed_to_the_bit(
    real_model_path: Path, stored: str, requests: list[GenerateRequest], alone: Outputs
) -> None:
    with open_native(real_model_path, weights=stored, num_pages=14) as loop:
        assert run(loop, requests) == alone
        assert loop.stats.num_preemptions > 0


def test_every_logit_is_the_same_to_the_bit_however_the_rows_were_cut_and_beside_whom(
    real_model_path: Path, stored: str, prompts: list[list[int]]
) -> None:
    from engine.native.decoder import load_native

    model = load_native(open_checkpoint(real_model_path), num_threads=2, int8=stored == "int8")
    tokens, other = prompts[5] * 3, prompts[8]
    whole = lane_logits(model, tokens, [len(tokens)], list(range(12)))
    cut = lane_logits(model, tokens, [33, 1, 1, 16, len(tokens) - 51], [7, 2, 11, 0, 5, 9, 1, 3, 10, 4, 8, 6])
    assert torch.equal(whole, cut)
    storage = storage_for(model.config, num_pages=32, dtype=torch.bfloat16)
    first, second = Lane(token_ids=tokens, pages=list(range(12))), Lane(token_ids=other, pages=list(range(20, 32)))
    run_step(model, storage, [(second, 9), (first, 40)])
    run_step(model, storage, [(first, len(tokens) - 40), (second, 1)])
    assert torch.equal(torch.cat(first.logits), whole)


def lane_logits(model: StepModel, tokens: list[int], chunks: Sequence[int], pages: Sequence[int]) -> torch.Tensor:
    """[T, V]: logits of one lane, read in chunks on the given pages."""
    assert sum(chunks) == len(tokens) <= 16 * len(pages)
    storage = storage_for(model.config, num_pages=32, dtype=torch.bfloat16)
    lane = Lane(token_ids=tokens, pages=list(pages))
    for chunk in chunks:
        run_step(model, storage, [(lane, chunk)])
    return torch.cat(lane.logits)
