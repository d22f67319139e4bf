"""A model with an adapter is the plain model that both make together: same tokens, same log-probabilities.

The plain model is made by adding to the weights what the adapter's paper says, and is computed by `transformers`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import AdapterSource
from engine.errors import UnknownAdapter
from tests.equivalence.harness import NATIVE_STEPS, Step, open_loop, request, run, run_events, run_scored
from tests.tiny_adapters import KINDS, Kind, write_merged_model, write_tiny_adapter
from tests.tiny_models import FAMILIES, Family, write_tiny_model

NEAR_TIE = 0.3
"""Logits by which a choice of a step in bfloat16 may be less likely than the best."""


def _prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(400) for _ in range(length)]


def _reference(model: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def _logprobs(reference: AutoModelForCausalLM, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """What `transformers` makes of each place of the answer, [len(answer), V]."""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_of_adapter_makes_of_each_family_the_model_it_describes(
    family: Family, kind: Kind, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "model", family, seed=4)
    adapter = write_tiny_adapter(tmp_path / "adapter", model, kind)
    prompts = [_prompt(3), _prompt(37)]
    with open_loop(model, max_batch_tokens=32, adapters=[adapter]) as loop:
        requests = [request(str(at), one, logprobs=0, adapter="adapter") for at, one in enumerate(prompts)]
        plain = [request(f"plain {at}", one, logprobs=0) for at, one in enumerate(prompts)]
        ours = run_scored(loop, [*requests, *plain])
    merged = _reference(write_merged_model(tmp_path / "merged", model, adapter))
    base = _reference(model)
    for reference, prefix in ((merged, ""), (base, "plain ")):
        for at, prompt in enumerate(prompts):
            scored = ours[f"{prefix}{at}", 0]
            answer = [token for token, _ in scored]
            expected = _logprobs(reference, prompt, answer)
            assert answer == expected.argmax(-1).tolist()
            found = torch.tensor([logprob for _, logprob in scored])
            assert torch.allclose(found, expected.amax(-1), atol=2e-3)
    assert ours["0", 0] != ours["plain 0", 0]


def test_many_adapters_share_a_batch_and_none_touches_the_others(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", "qwen2", seed=4)
    adapters = [write_tiny_adapter(tmp_path / kind, model, kind, seed=at) for at, kind in enumerate(KINDS)]
    modules = ("q_proj", "v_proj")
    adapters.append(write_tiny_adapter(tmp_path / "narrow", model, "lora", rank=2, modules=modules, spread=2.0))
    names = ["", *(adapter.name for adapter in adapters)]
    requests = [
        request(f"{name} {at}", _prompt(9 + 5 * at, seed=at), adapter=name, temperature=0.9, seed=at)
        for name in names
        for at in range(2)
    ]
    with open_loop(model, adapters=adapters) as loop:
        together = run(loop, requests)
    with open_loop(model, adapters=adapters, prefix_cache=False) as loop:
        alone = {key: value for each in requests for key, value in run(loop, [each]).items()}
    assert together == alone
    assert len({tuple(together[f"{name} 0", 0]) for name in names}) == len(names)


@pytest.mark.parametrize("step", NATIVE_STEPS)
def test_beside_the_native_step_lanes_with_an_adapter_are_computed_by_torch(step: Step, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", "qwen3", seed=4)
    adapter = write_tiny_adapter(tmp_path / "adapter", model, "lora")
    prompts = [_prompt(11 + at, seed=at) for at in range(4)]
    adapted = [request(f"adapted {at}", one, adapter="adapter") for at, one in enumerate(prompts)]
    plain = [request(f"plain {at}", one) for at, one in enumerate(prompts)]
    with open_loop(model, step=step, adapters=[adapter]) as loop:
        mixed = run(loop, [one for pair in zip(adapted, plain, strict=True) for one in pair])
    with open_loop(model, step=step) as loop:
        alone = run(loop, plain)
    assert {key: value for key, value in mixed.items() if key[0].startswith("plain")} == alone
    reference = _reference(write_merged_model(tmp_path / "merged", model, adapter))
    for at, prompt in enumerate(prompts):
        answer = mixed[f"adapted {at}", 0]
        logprobs = _logprobs(reference, prompt, answer)
        margins = logprobs.amax(-1) - logprobs.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert float(margins.max()) < NEAR_TIE


def test_pages_are_never_shared_between_a_model_and_its_adapters(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", seed=4)
    adapters = [
        write_tiny_adapter(tmp_path / "one", model, "lora", seed=1),
        write_tiny_adapter(tmp_path / "two", model, "lora", seed=2),
    ]
    adapters.append(AdapterSource(name="same as one", path=adapters[0].path))
    prompt = _prompt(50)
    cached: dict[str, list[int | None]] = {}
    with open_loop(model, adapters=adapters) as loop:
        for name in ("", "one", "two", "one", "", "same as one"):
            events = run_events(loop, [request("it", prompt, max_tokens=1, adapter=name)])
            cached.setdefault(name, []).append(events[0].num_cached_tokens)
    assert cached == {"": [0, 48], "one": [0, 48], "two": [0], "same as one": [48]}


def test_an_adapter_that_is_not_loaded_is_refused_before_any_work(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    adapter = write_tiny_adapter(tmp_path / "there", model, "ia3")
    with open_loop(model, adapters=[adapter]) as loop:
        with pytest.raises(UnknownAdapter, match="'missing' does not exist; loaded are there") as caught:
            loop.submit(request("it", [1, 2, 3], adapter="missing"))
        assert caught.value.param == "adapter"
        assert not loop.has_work
