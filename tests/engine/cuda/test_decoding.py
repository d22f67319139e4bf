"""A decoding step gives the logits of torch's decoder in each of its forms, in float32 to rounding."""

from __future__ import annotations

import copy
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.decoding import Decoding
from engine.cuda.lanes import DecodeLanes, LanePacker
from engine.cuda.model import CudaModel
from engine.cuda.plan import DecodePlan, make_plan
from engine.kv.storage import KVStorage
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import Decoder, load_model
from engine.models.weights import load_weights
from engine.quantization.formats import FORMATS
from engine.scheduling.batch import Lane as StepLane
from tests.engine.cuda.amounts import some
from tests.engine.models.harness import Lane, run_step, storage_for
from tests.tiny_models import Family, write_tiny_model

VARIANTS: dict[str, tuple[Family, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "window": ("mistral", {"sliding_window": 6}),
    "biases": ("qwen2", {}),
    "norms of heads": ("qwen3", {}),
}

FORMS = {"single": 1, "narrow": 4, "wide": 4}

DEEP = "norms of heads"
"""The variant that has two layers where kernels are interpreted, so that one hands on to the next; others have one."""

TRIED = some(list(VARIANTS), ["window", "biases", DEEP])
"""Where kernels are interpreted, what is in all of them is tried with each."""


def plan_of(form: str, model: CudaModel) -> DecodePlan:
    plan = make_plan(model, FORMS[form], 64)
    return replace(plan, narrow=None) if form == "wide" else plan


def step_lane(lane: Lane, row: int, *, feeds_back: bool) -> StepLane:
    """The lane as the scheduler would hand it over; its newest token is yet to be computed."""
    sequence = SimpleNamespace(token_ids=list(lane.token_ids), num_prompt=2)
    return StepLane(
        sequence=cast("Any", sequence),
        run=0,
        start=lane.num_computed,
        num_tokens=1,
        samples=True,
        feeds_back=feeds_back,
        reads_prompt=False,
        row=row,
        pages=array("i", lane.pages),
        copies=(),
    )


@dataclass(frozen=True)
class Step:
    """One decoding step by the kernels and by torch, on the same lanes.

    Attributes:
        found, expected: Logits of the lanes.
        ours, theirs: K and V afterwards.
        lanes: What the kernels read of the lanes.
        lengths: Tokens of each.
    """

    found: torch.Tensor
    expected: torch.Tensor
    ours: KVStorage
    theirs: KVStorage
    lanes: DecodeLanes
    lengths: list[int]


def take_step(form: str, reference: Decoder, model: CudaModel) -> Step:
    """Prompts are computed by torch, on whose K and V both go on."""
    device = model.device
    storage = storage_for(model.config, num_pages=8, page_size=8, dtype=model.dtype, device=device)
    lengths = [9] if form == "single" else [17, 1, 9]
    pages = [[3, 0, 6], [5], [7, 2]]
    draw = torch.Generator().manual_seed(5)
    lanes = [
        Lane(token_ids=torch.randint(0, 512, (length,), generator=draw).tolist(), pages=pages[at])
        for at, length in enumerate(lengths)
    ]
    run_step(reference, storage, [(lane, len(lane.token_ids) - 1) for lane in lanes if len(lane.token_ids) > 1])
    ours, theirs = copy.deepcopy(storage), storage
    plan = plan_of(form, model)
    packer, device_lanes = LanePacker(plan.width, 8), DecodeLanes(plan.width, 8, device)
    last_tokens = torch.zeros(8, dtype=torch.int64, device=device)
    given = [step_lane(lane, row=5 - at, feeds_back=at == 0) for at, lane in enumerate(lanes)]
    last_tokens[5] = lanes[0].token_ids[-1]
    device_lanes.packed.copy_(torch.from_numpy(packer.pack(given)))
    found = Decoding(plan, device_lanes, ours, DecodeBuffers(model, [plan]), last_tokens, pdl=False).launch()
    run_step(reference, theirs, [(lane, 1) for lane in lanes])
    expected = torch.cat([lane.logits[-1] for lane in lanes])
    return Step(found[: len(lanes)], expected, ours, theirs, device_lanes, lengths)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", TRIED)
@pytest.mark.usefixtures("coarse_cuts")
def test_logits_are_those_of_torch(form: str, variant: str, device: torch.device, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    layers = some(3, 2 if variant == DEEP else 1)
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family, num_hidden_layers=layers, **overrides))
    reference = load_model(checkpoint, device=device, dtype=torch.float32, attention="sdpa")
    model = CudaModel.of(checkpoint.config, load_weights(checkpoint, torch.float32, device))

    step = take_step(form, reference, model)

    torch.testing.assert_close(step.found, step.expected, rtol=1e-4, atol=1e-4)
    for own, their in zip(step.ours.layers, step.theirs.layers, strict=True):
        torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-4)
    assert step.lanes.draw_positions[: len(step.lengths)].tolist() == step.lengths
    assert step.lanes.num_outputs[: len(step.lengths)].tolist() == [length - 2 for length in step.lengths]


@pytest.mark.parametrize(("form", "name"), [("single", "int8"), ("narrow", "fp8"), ("narrow", "int8"), ("wide", "fp8")])
@pytest.mark.usefixtures("coarse_cuts")
def test_quantized_weights_give_the_logits_of_torch_but_for_rounding(
    form: str, name: str, device: torch.device, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, "qwen3", num_hidden_layers=1))
    kind = FORMATS[name]
    reference = load_model(checkpoint, device=device, dtype=torch.bfloat16, attention="sdpa", quantized=kind)
    model = CudaModel.of(checkpoint.config, load_weights(checkpoint, torch.bfloat16, device, kind))
    assert model.weights.layers[0].qkv.dtype == kind.dtype

    step = take_step(form, reference, model)

    error = (step.found - step.expected).norm() / step.expected.norm()
    assert error < 0.03
