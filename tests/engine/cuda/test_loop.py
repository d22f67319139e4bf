"""Whole requests through the CUDA step, its kernels interpreted on a CPU: the tokens of torch's step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.attention.select import BACKENDS
from engine.config import KVFormat
from engine.contexts.commands import AppendTokens, OpenContext
from engine.cuda import prompt_graphs
from engine.cuda.graphs import GraphDecoder
from engine.cuda.status import CudaStatus
from engine.loop import EngineLoop
from engine.request import Distribution, GenerateRequest, ProgramSpec, Readout
from engine.runner.decoding import DrawnStep
from engine.step_choice import StepChoice
from tests.equivalence.harness import open_loop, request, run
from tests.tiny_models import write_tiny_model


def requests() -> list[GenerateRequest]:
    """Enough for decoding steps of one, two and three lanes, and for prompts beside decoding lanes."""
    return [
        request("greedy", [5, 9, 301, 44, 17, 8, 2, 90], max_tokens=5),
        request("drawn", [77], max_tokens=4, temperature=0.8, seed=3),
        request("narrowed", [4, 4, 260], max_tokens=3, temperature=1.1, top_p=0.8, top_k=30, frequency_penalty=0.4),
    ]


WALK = """
state.level = 1.0

def sample(logits, key, prev, rate):
    state.level = state.level * 0.5 + rate * float(prev % 5)
    return gumbel_argmax(logits + where(one_hot(prev), state.level, 0.0), key)
"""


def program_requests() -> list[GenerateRequest]:
    """Two that draw by a program, and one that does not and ends before them."""
    spec = ProgramSpec(source=WALK, parameters={"rate": 0.3})
    drawing = [request(name, [5, 9, len(name)], max_tokens=6, seed=4) for name in ("one", "other")]
    return [*(msgspec.structs.replace(one, program=spec) for one in drawing), request("plain", [77], max_tokens=4)]


@pytest.mark.usefixtures("coarse_cuts")
@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_tokens_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: KVFormat) -> None:
    model = write_tiny_model(tmp_path, "qwen3", num_hidden_layers=1, max_position_embeddings=64)
    monkeypatch.setattr("engine.quantization.calibration.LANE_TOKENS", 4)
    with open_loop(model, max_num_seqs=3, kv_dtype=kv) as loop:
        expected = run(loop, requests())
    pretend(monkeypatch)

    with open_loop(model, max_num_seqs=3, step="cuda", attention="sdpa", kv_dtype=kv) as loop:
        found = run(loop, requests())

    assert found == expected


@pytest.mark.usefixtures("coarse_cuts")
def test_programs_draw_the_same_tokens_within_recorded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path, "llama", num_hidden_layers=1, max_position_embeddings=64)
    with open_loop(model, max_num_seqs=3) as loop:
        expected = run(loop, program_requests())
    pretend(monkeypatch)
    monkeypatch.setenv("WYE_PROGRAM_GRAPHS", "1")
    monkeypatch.setattr("engine.cuda.recordings.FIRST_USES", 1)
    monkeypatch.setattr("engine.cuda.recordings.LAST_USES", 2)  # the thread never rests where steps are slow
    monkeypatch.setattr("engine.cuda.program_ending.ProgramEnding.is_ready", lambda _: True)  # compiled on the way
    recorded = []
    draw = GraphDecoder.draw_by_program

    def note(decoder: GraphDecoder, staged: Any, lanes: Any) -> DrawnStep | None:
        step = draw(decoder, staged, lanes)
        recorded.append(step is not None)
        return step

    monkeypatch.setattr(GraphDecoder, "draw_by_program", note)
    with open_loop(model, max_num_seqs=3, step="cuda", attention="sdpa") as loop:
        found = run(loop, program_requests())

    assert found == expected
    assert set(recorded) == {False, True}


@pytest.mark.usefixtures("coarse_cuts")
@pytest.mark.filterwarnings("ignore:overflow encountered")  # rows that are nobody's hold whatever lay in their memory
def test_prompts_give_the_same_tokens_within_recorded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path, "llama", num_hidden_layers=1, max_position_embeddings=64)
    asked = [request("first", [5, 9, 301, 44, 17], max_tokens=2), request("second", [7, 8, 12, 90], max_tokens=2)]
    with open_loop(model, max_num_seqs=2, max_batch_tokens=5) as loop:
        expected = run(loop, asked)
    pretend(monkeypatch)
    monkeypatch.setenv("WYE_PROMPT_GRAPHS", "1")
    monkeypatch.setitem(
        BACKENDS, "triton", dataclasses.replace(BACKENDS["triton"], devices=None, refusal=lambda _: None)
    )
    monkeypatch.setattr("engine.cuda.recordings.FIRST_USES", 1)
    monkeypatch.setattr("engine.cuda.recordings.LAST_USES", 1)
    monkeypatch.setattr("engine.cuda.prompt_graphs.SIZES", (8,))
    monkeypatch.setattr("engine.cuda.prompt_graphs.READS", (4,))
    monkeypatch.setattr("engine.cuda.prompt_graphs.ROOMS", ({1: 2, 2: 2, 3: 2},))
    monkeypatch.setattr("engine.cuda.prompt_graphs.FIRST_SIZES", ())
    replayed = []
    replay = prompt_graphs._Recorded.run

    def note(recorded: Any, inputs: Any) -> torch.Tensor | None:
        replayed.append(len(inputs.token_ids))
        return replay(recorded, inputs)

    monkeypatch.setattr(prompt_graphs._Recorded, "run", note)
    with open_loop(model, max_num_seqs=2, max_batch_tokens=5, step="cuda", attention="triton") as loop:
        found = run(loop, asked)

    assert found == expected
    assert replayed


Proposed = dict[str, list[tuple[int, Distribution]]]


def take_all_proposed(loop: EngineLoop, asked: list[GenerateRequest]) -> Proposed:
    """Steps through generations on contexts of their own and takes what is proposed; by name, what they were told."""
    told: Proposed = {one.request_id: [] for one in asked}
    for at, one in enumerate(asked):
        loop.obey(OpenContext(one.context_id))
        loop.obey(AppendTokens(one.context_id, [5, 9, 301 + at, 44, 17][: 5 - at]))
        loop.submit(one)
    while loop.has_work:
        for event in loop.step():
            if event.proposal is not None:
                assert event.distribution is not None
                seen = [(event.proposal, event.distribution), *event.further]
                told[event.request_id] += [(token_id, found) for token_id, found in seen if found is not None]
                loop.advance(event.request_id, None, 1, num_taken=len(event.further))
    return told


def stepped_requests() -> list[GenerateRequest]:
    """One that draws, one whose penalties change what it draws from."""
    drawn = request("drawn", [], max_tokens=12, temperature=0.8, seed=3)
    penalised = request("penalised", [], max_tokens=12, frequency_penalty=0.6)
    return [
        msgspec.structs.replace(one, context_id=one.request_id, stepped=True, readout=Readout(top=4))
        for one in (drawn, penalised)
    ]


@pytest.mark.usefixtures("coarse_cuts")
@pytest.mark.parametrize("records", [True, False])
def test_steps_tell_what_tokens_are_drawn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: bool) -> None:
    model = write_tiny_model(tmp_path, "llama", num_hidden_layers=1, max_position_embeddings=64)
    with open_loop(model, max_num_seqs=2) as loop:
        expected = take_all_proposed(loop, stepped_requests())
    pretend(monkeypatch)
    for name in ("FIRST_USES", "LAST_USES"):
        monkeypatch.setattr(f"engine.cuda.recordings.{name}", 1 if records else 10**6)
    looked = []
    draw = GraphDecoder.draw

    def note(decoder: GraphDecoder, staged: Any, *, looks: bool = False) -> DrawnStep | None:
        step = draw(decoder, staged, looks=looks)
        looked.append(step is not None and step.looks is not None)
        return step

    monkeypatch.setattr(GraphDecoder, "draw", note)
    with open_loop(model, max_num_seqs=2, step="cuda", attention="sdpa") as loop:
        found = take_all_proposed(loop, stepped_requests())

    assert any(looked) == records
    for name, told in expected.items():
        assert [token_id for token_id, _ in found[name]] == [token_id for token_id, _ in told]
        assert len(told) == 12
        for (_, one), (_, other) in zip(found[name], told, strict=True):
            assert one.token_ids == other.token_ids
            ours, theirs = (np.frombuffer(each.logprobs, "<f4") for each in (one, other))
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
            np.testing.assert_allclose([one.entropy, one.omitted_mass], [other.entropy, other.omitted_mass], rtol=1e-3)


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: nothing interprets its kernels")
    monkeypatch.setattr("engine.build.warm_up", lambda *_: None)  # its prompts would be interpreted for minutes
    monkeypatch.setattr(
        "engine.resolve.choose_step", lambda *_: StepChoice(step="cuda", reason="on a CPU, interpreted")
    )
    monkeypatch.setattr("engine.cuda.status.cuda_status", lambda _: CudaStatus(True, "interpreted"))
