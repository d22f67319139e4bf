"""Embeddings of the real model are those of `transformers`, and tell near texts from far ones.

The weights are those of the GGUF file as both read it. Torch's step in float32 must give every value within 1e-4 of
the states' standard deviation. The native step rounds to bfloat16, or to int8: the cosine may fall short of 1 by 0.001,
or 0.01, as with the tiny models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.request import Pooling
from engine.text.model import TextModel
from tests.equivalence.harness import STEPS, Step, open_loop
from tests.equivalence.test_embeddings import TURNED, Vector, embed, embedding_request, turn

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

TEXTS = [
    "The cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Interest rates rose again.",
    "The central bank raised its interest rate once more, for the third time within a year. " * 4,
]


@pytest.fixture(scope="module")
def prompts(real_model_path: Path) -> list[list[int]]:
    tokenizer = TextModel.load(real_model_path).tokenizer
    return [tokenizer.encode(text, add_special=True) for text in TEXTS]


@pytest.fixture(scope="module")
def expected(
    transformers_model: Callable[[], Any], prompts: list[list[int]]
) -> list[dict[Pooling, npt.NDArray[np.float64]]]:
    """What `transformers` finds in float32."""
    reference = transformers_model().model
    found = []
    for ids in prompts:
        with torch.inference_mode():
            states = reference(torch.tensor([ids])).last_hidden_state[0].double().numpy()
        found.append({Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1]})
    return found


def embed_all(path: Path, step: Step, prompts: list[list[int]]) -> dict[str, Vector]:
    asked = [embedding_request(f"{pooling}{at}", ids, pooling) for at, ids in enumerate(prompts) for pooling in Pooling]
    with open_loop(path, step=step, max_batch_tokens=32) as loop:
        return embed(loop, asked)


@pytest.mark.parametrize("step", STEPS)
def test_they_are_those_of_transformers(
    real_model_path: Path, prompts: list[list[int]], expected: list[dict[Pooling, npt.NDArray[np.float64]]], step: Step
) -> None:
    found = embed_all(real_model_path, step, prompts)
    for at, wanted in enumerate(expected):
        for pooling, vector in wanted.items():
            if step == "torch":
                assert np.abs(found[f"{pooling}{at}"] - vector).max() < 1e-4 * vector.std()
            else:
                assert turn(found[f"{pooling}{at}"], vector) < TURNED[step]


def test_texts_of_one_subject_are_nearer_than_others(real_model_path: Path, prompts: list[list[int]]) -> None:
    found = embed_all(real_model_path, "torch", prompts)
    cats, kittens, rates, banks = (found[f"mean{at}"].astype(np.float64) for at in range(4))
    assert turn(found["mean1"], cats) < min(turn(found["mean2"], cats), turn(found["mean3"], cats))
    assert turn(found["mean3"], rates) < turn(found["mean3"], kittens)
    assert banks.shape == rates.shape
