"""Models that were made to embed, stored as their authors do, embed as `transformers` has them and do not generate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from engine.errors import ModelLoadError, UnsupportedReadout
from engine.models.checkpoint import open_checkpoint
from engine.request import Pooling
from engine.sources.inspection import is_model_file
from tests.equivalence.harness import NATIVE_STEPS, Step, open_loop, request, run
from tests.equivalence.test_embeddings import TURNED, embed, expected_of, prompts, requests, turn
from tests.tiny_models import FAMILIES, Family, write_tiny_model


def write_embedding_model(directory: Path, family: Family, *, num_shards: int = 1) -> Path:
    """A tiny model without its head, as `transformers` stores one."""
    whole = write_tiny_model(directory / "whole", family, seed=4)
    bare = directory / "bare"
    size = "1GB" if num_shards == 1 else "100KB"
    AutoModel.from_pretrained(whole).save_pretrained(bare, max_shard_size=size)
    assert len(list(bare.glob("*.safetensors"))) >= num_shards
    assert json.loads((bare / "config.json").read_text(encoding="utf-8"))["architectures"][0].endswith("Model")
    return bare


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_its_head_embeds_as_transformers_does(family: Family, num_shards: int, tmp_path: Path) -> None:
    model = write_embedding_model(tmp_path, family, num_shards=num_shards)
    with open_loop(model) as loop:
        found = embed(loop, requests())
    for at, ids in enumerate(prompts()):
        for pooling, expected in expected_of(model, ids).items():
            assert np.abs(found[f"{pooling}{at}"] - expected).max() < 1e-5 * expected.std()


@pytest.mark.parametrize("step", NATIVE_STEPS)
def test_the_native_step_takes_it_too(step: Step, tmp_path: Path) -> None:
    model = write_embedding_model(tmp_path, "mistral")
    with open_loop(model, step=step) as loop:
        found = embed(loop, requests())
    expected = expected_of(model, prompts()[3])
    assert all(turn(found[f"{pooling}3"], expected[pooling]) < TURNED[step] for pooling in Pooling)


def test_it_refuses_to_generate_unless_its_embedding_is_its_head(tmp_path: Path) -> None:
    with open_loop(write_embedding_model(tmp_path / "untied", "llama")) as loop:
        assert not loop.info.generates
        with pytest.raises(UnsupportedReadout, match="has no head") as refused:
            loop.submit(request("r", [1, 2, 3]))
        assert refused.value.param == "model"
    tied = write_embedding_model(tmp_path / "tied", "qwen3")
    with open_loop(tied) as loop:
        assert loop.info.generates
        bare = run(loop, [request("r", [1, 2, 3])])
    with open_loop(tied.parent / "whole") as loop:
        assert run(loop, [request("r", [1, 2, 3])]) == bare


def test_a_tensor_that_is_missing_is_named_as_it_is_stored(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = write_embedding_model(tmp_path, "llama")
    tensors = load_file(model / "model.safetensors")
    del tensors["layers.1.mlp.up_proj.weight"]
    save_file(tensors, model / "model.safetensors")
    with (
        pytest.raises(ModelLoadError, match=r"tensor 'layers\.1\.mlp\.up_proj\.weight' is missing"),
        open_loop(model),
    ):
        pass


def test_attention_to_both_sides_is_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, "qwen2")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "is_causal": False}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"config\.json: key 'is_causal' is false"):
        open_checkpoint(model)


def test_what_says_how_to_pool_is_fetched_with_a_model() -> None:
    assert is_model_file("modules.json")
    assert is_model_file("1_Pooling/config.json")
    assert not is_model_file("onnx/config.json")
