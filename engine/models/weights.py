"""Streams a checkpoint into a decoder's memory: one pass, one tensor at a time, every place filled exactly once."""

from __future__ import annotations

import re

import torch

from engine.errors import ModelLoadError
from engine.models.checkpoint import Checkpoint
from engine.models.parameters import DecoderWeights, Destination, allocate, destinations
from engine.quantization.formats import NumberFormat
from engine.quantization.matrix import QuantizedMatrix, quantize_into

_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors that old checkpoints carry although the configuration implies them."""

_NAMED_AT_MOST = 5


def load_weights(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, quantized: NumberFormat | None = None
) -> DecoderWeights:
    """Loads all weights, projections fused, norms in float32, matrices in `dtype`, or quantized as they come.

    Raises:
        ModelLoadError: A tensor is missing, unexpected, of a wrong shape, or holds a value that is not finite.
    """
    weights = allocate(checkpoint.config, dtype, device, quantized)
    places = destinations(checkpoint.config, weights)
    _check_names(checkpoint, set(places))
    tied_copy = None
    for name, tensor in checkpoint.tensors(dtype, device):
        if name in places:
            _fill(checkpoint, name, tensor, places.pop(name))
        elif name == "lm_head.weight":
            tied_copy = tensor.to(device=device, dtype=dtype)
    if places:
        raise ModelLoadError(f"{checkpoint.describe(min(places))} did not come although its file names it")
    if tied_copy is not None and not torch.equal(tied_copy, weights.embedding):
        raise ModelLoadError(
            f"{checkpoint.describe('lm_head.weight')} differs from the embedding although the configuration ties them"
        )
    if checkpoint.config.tied_embeddings and weights.head_scale is not None:
        quantize_into(QuantizedMatrix(weights.head, weights.head_scale), weights.embedding)
    return weights


def _check_names(checkpoint: Checkpoint, expected: set[str]) -> None:
    found = {name for name in checkpoint.names() if not _DERIVED.fullmatch(name)}
    missing, unexpected = sorted(expected - found), sorted(found - expected)
    if checkpoint.config.tied_embeddings and "lm_head.weight" in unexpected:
        unexpected.remove("lm_head.weight")
    if missing:
        raise ModelLoadError(f"{checkpoint.describe(missing[0])} is missing{_others(missing)}")
    if unexpected:
        family = checkpoint.config.architecture
        raise ModelLoadError(
            f"{checkpoint.describe(unexpected[0])} has no place in a {family} model of this configuration"
            f"{_others(unexpected)}"
        )


def _fill(checkpoint: Checkpoint, name: str, tensor: torch.Tensor, place: Destination) -> None:
    if tuple(tensor.shape) != place.shape:
        raise ModelLoadError(
            f"{checkpoint.describe(name)} has shape {list(tensor.shape)}, expected {list(place.shape)}"
        )
    if place.scale is None:
        place.view.copy_(tensor)
    else:
        quantize_into(QuantizedMatrix(place.view, place.scale), tensor)
    # One NaN or infinity reaches every logit; the sum carries it and is cheaper than a test of each element.
    if not torch.isfinite((place.view if place.scale is None else place.scale).sum()):
        raise ModelLoadError(f"{checkpoint.describe(name)} holds values that are not finite")


def _others(names: list[str]) -> str:
    rest = names[1:_NAMED_AT_MOST]
    if not rest:
        return ""
    more = len(names) - 1 - len(rest)
    return f"; likewise {', '.join(rest)}" + (f" and {more} more" if more else "")
