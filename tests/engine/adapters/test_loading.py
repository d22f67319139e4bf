"""What is wrong with an adapter is said when it is loaded, with its name, the file, and the tensor or key at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.adapters.loading import load_adapters
from engine.config import AdapterSource
from engine.errors import ModelLoadError
from engine.models.checkpoint import open_checkpoint
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import write_tiny_model

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def _load(model: Path, *sources: AdapterSource) -> list[Any]:
    return load_adapters(sources, open_checkpoint(model), dtype=torch.float32, device=torch.device("cpu"))


def _refusal(model: Path, source: AdapterSource) -> str:
    with pytest.raises(ModelLoadError) as caught:
        _load(model, source)
    return caught.value.message


def _change_tensors(source: AdapterSource, **changed: torch.Tensor | None) -> None:
    file = Path(source.path) / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, tensor in changed.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, file)


def test_a_loaded_adapter_says_what_it_is(model: Path, tmp_path: Path) -> None:
    lora = write_tiny_adapter(tmp_path / "lora", model, "rslora", rank=5)
    ia3 = write_tiny_adapter(tmp_path / "ia3", model, "ia3")
    dora = write_tiny_adapter(tmp_path / "dora", model, "dora", rank=3)
    loaded = _load(model, lora, ia3, dora)
    assert [(one.name, one.kind, one.rank) for one in loaded] == [
        ("lora", "lora", 5),
        ("ia3", "ia3", 0),
        ("dora", "dora", 3),
    ]
    assert len({one.digest for one in loaded}) == 3


def test_the_same_files_have_the_same_digest_and_another_strength_has_another(model: Path, tmp_path: Path) -> None:
    one = write_tiny_adapter(tmp_path / "one", model, "lora")
    same = write_tiny_adapter(tmp_path / "same", model, "lora")
    stronger = write_tiny_adapter(tmp_path / "stronger", model, "lora", lora_alpha=7.0)
    digests = [loaded.digest for loaded in _load(model, one, same, stronger)]
    assert digests[0] == digests[1] != digests[2]


def test_names_must_differ(model: Path, tmp_path: Path) -> None:
    source = write_tiny_adapter(tmp_path / "one", model, "lora")
    with pytest.raises(ModelLoadError, match="two adapters are named 'one'"):
        _load(model, source, source)


def test_a_directory_without_an_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    assert "no such directory" in _refusal(model, AdapterSource(name="it", path=str(tmp_path / "nowhere")))
    message = _refusal(model, AdapterSource(name="it", path=str(tmp_path)))
    assert message.startswith("adapter 'it': ")
    assert "adapter_config.json: no such file" in message


def test_weights_that_are_no_safetensors_are_refused(model: Path, tmp_path: Path) -> None:
    source = write_tiny_adapter(tmp_path / "it", model, "lora")
    file = Path(source.path) / "adapter_model.safetensors"
    file.rename(file.with_suffix(".bin"))
    assert "only safetensors are read" in _refusal(model, source)
    file.write_bytes(b"no safetensors")
    assert "not a whole safetensors file" in _refusal(model, source)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"peft_type": "VERA"}, "key 'peft_type' is 'VERA'; supported are LORA, IA3"),
        ({"modules_to_save": ["lm_head"]}, "key 'modules_to_save' is set"),
        ({"bias": "all"}, "key 'bias' is 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "key 'init_lora_weights' is 'pissa_niter_4', which changes the base"),
        ({"alpha_pattern": {"(": 1}}, "is no regular expression"),
        ({"lora_alpha": "strong"}, "key 'lora_alpha' must be a number"),
        ({"use_rslora": "yes"}, "key 'use_rslora' must be true or false"),
    ],
)
def test_what_a_configuration_asks_for_is_followed_or_refused(
    model: Path, tmp_path: Path, overrides: dict[str, Any], said: str
) -> None:
    source = write_tiny_adapter(tmp_path / "it", model, "lora", **overrides)
    assert said in _refusal(model, source)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        (f"{Q_PROJ}.lora_A.weight", torch.ones(4, 63), "q_proj.lora_A has shape [4, 63], the model needs [4, 64]"),
        (f"{Q_PROJ}.lora_B.weight", torch.ones(64, 3), "q_proj.lora_B has shape [64, 3], the model needs [64, 4]"),
        (f"{Q_PROJ}.lora_B.weight", None, "expected lora_A, lora_B; the difference is lora_B"),
        (f"{Q_PROJ}.lora_magnitude_vector", torch.ones(64), "the difference is lora_magnitude_vector"),
        (f"{Q_PROJ}.lora_A.weight", torch.full((4, 64), torch.inf), "holds values that are not finite"),
        (f"{Q_PROJ}.lora_A.weight", torch.ones(4, 64, dtype=torch.int8), "dtype torch.int8 is not supported"),
        ("base_model.model.lm_head.lora_A.weight", torch.ones(4, 64), "has no place"),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_embedding_A", torch.ones(4, 64), "has no place"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused_with_the_model_they_were_made_for(
    model: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, said: str
) -> None:
    source = write_tiny_adapter(tmp_path / "it", model, "lora")
    _change_tensors(source, **{name: tensor})
    message = _refusal(model, source)
    assert said in message
    if "has shape" in said:
        assert message.endswith("the adapter was made for 'tiny'")


def test_an_adapter_of_a_deeper_or_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    deeper = write_tiny_model(tmp_path / "deeper", num_hidden_layers=5)
    assert "the model has 3 layers; the adapter was made for 'tiny'" in _refusal(
        model, write_tiny_adapter(tmp_path / "one", deeper, "lora")
    )
    source = write_tiny_adapter(tmp_path / "two", model, "lora")
    _change_tensors(source, **{"base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight": torch.ones(4, 64)})
    assert "a llama model has no such projection" in _refusal(model, source)


def test_an_ia3_that_scales_the_wrong_side_is_refused(model: Path, tmp_path: Path) -> None:
    source = write_tiny_adapter(tmp_path / "it", model, "ia3")
    config = Path(source.path) / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"feedforward_modules": ["up_proj"]}))
    assert "down_proj.ia3_l has shape [1, 96], the model needs [64, 1]" in _refusal(model, source)
