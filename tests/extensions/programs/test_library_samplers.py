"""The samplers of the library keep the tokens, and give them the weights, that their papers say."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation import logits_process

from engine.programs.binding import BoundProgram, bind, bind_sampler
from engine.programs.reference import DTYPES, first_state, run
from engine.programs.torch_form import BatchValues, TorchProgram
from engine.programs.values import StepValues
from extensions.library import shipped_source

V = 150
CPU = torch.device("cpu")
Logits = npt.NDArray[np.float32]


def constant(name: str, wanted: str) -> Any:
    """A constant of one of the library's programs."""
    for node in ast.parse(shipped_source(name)).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == wanted:
            return ast.literal_eval(node.value)
    raise KeyError(wanted)


def bound(name: str, parameters: Mapping[str, Any]) -> BoundProgram:
    return bind_sampler(constant(name, "SAMPLER"), {"temperature": 1.0, **parameters}, V)


def scores(name: str, logits: Logits, history: tuple[int, ...] = (), **parameters: Any) -> Logits:
    """What a sampler draws from softmax of, by the form that runs."""
    source, count = re.subn(
        r"return gumbel_argmax\((.*), key\)", r"probe.scores = \1\n    return 0", constant(name, "SAMPLER")
    )
    assert count == 1
    program = bind(source, {"temperature": 1.0, **parameters}, V)
    values = BatchValues(
        lanes=[torch.from_numpy(logits)[None]],
        keys=torch.tensor([17]),
        history=torch.tensor([history], dtype=torch.int64),
        lengths=torch.tensor([len(history)]),
        parameters={
            name: torch.from_numpy(np.atleast_2d(np.asarray(program.parameters[name], DTYPES[kind.kind])))
            for name, kind in program.types
        },
    )
    found: Logits = TorchProgram(program.graph, V, CPU).run(values).probes["scores"][0].numpy()
    return found


def drawn_logits(seed: int, spread: float = 3.0) -> Logits:
    return np.random.default_rng(seed).normal(0.0, spread, V).astype(np.float32)


def kept(found: Logits) -> list[int]:
    return [token for token in range(V) if found[token] > -1e29]


WARPERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "min_p": ("min_p", {"min_p": 0.07}, logits_process.MinPLogitsWarper(0.07)),
    "typical": ("typical", {"tau": 0.8}, logits_process.TypicalLogitsWarper(0.8)),
    "typical of little mass": ("typical", {"tau": 0.05}, logits_process.TypicalLogitsWarper(0.05)),
    "eta": ("eta_epsilon", {"epsilon": 0.02, "adaptive": True}, logits_process.EtaLogitsWarper(0.02)),
    "epsilon": ("eta_epsilon", {"epsilon": 0.02, "adaptive": False}, logits_process.EpsilonLogitsWarper(0.02)),
    "epsilon above all": ("eta_epsilon", {"epsilon": 0.9, "adaptive": False}, logits_process.EpsilonLogitsWarper(0.9)),
}


@pytest.mark.parametrize("case", WARPERS)
@pytest.mark.parametrize("seed", range(6))
def test_a_truncation_is_that_of_transformers(case: str, seed: int) -> None:
    name, parameters, warper = WARPERS[case]
    logits = drawn_logits(seed)
    wanted = warper(torch.zeros((1, 1), dtype=torch.int64), torch.from_numpy(logits)[None])[0].numpy()
    found = scores(name, logits, **parameters)
    assert kept(found) == [token for token in range(V) if wanted[token] > -np.inf]
    assert len(kept(found)) < V
    assert np.array_equal(found[kept(found)], logits[kept(found)])


@pytest.mark.parametrize("seed", range(4))
def test_top_a_keeps_what_is_above_the_square_of_the_greatest(seed: int) -> None:
    logits = drawn_logits(seed)
    p = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    found = scores("top_a", logits, a=0.3)
    assert kept(found) == [token for token in range(V) if p[token] >= 0.3 * p.max() ** 2]
    assert 0 < len(kept(found)) < V


@pytest.mark.parametrize("seed", range(4))
def test_the_dynamic_temperature_is_the_paper_s_formula(seed: int) -> None:
    logits = drawn_logits(seed, spread=1.0 + seed)
    p = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    entropy = -(p * np.log(p)).sum()
    found = scores("entropy_temperature", logits, base=0.8, theta=2.0, temperature=1.5)
    assert found == pytest.approx(logits / (1.5 * 0.8 ** (2.0 / entropy)), rel=1e-4)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_xtc_keeps_the_least_likely_of_the_top_choices(probability: float) -> None:
    p = np.full(V, 0.2 / (V - 3))
    p[[5, 9, 30]] = [0.4, 0.15, 0.25]
    logits = np.log(p).astype(np.float32)
    free = np.zeros(V).tolist()
    found = scores("xtc", logits, threshold=0.1, probability=probability, kept=free)
    gone = set(range(V)) - set(kept(found))
    assert gone == ({5, 30} if probability else set())
    guarded = [1.0 if token == 30 else 0.0 for token in range(V)]
    assert kept(scores("xtc", logits, threshold=0.1, probability=probability, kept=guarded)) == list(range(V))
    assert kept(scores("xtc", logits, threshold=0.5, probability=probability, kept=free)) == list(range(V))


def dry_penalties(history: tuple[int, ...], multiplier: float, base: float, allowed: int, breakers: set[int]) -> Logits:
    """As its author's loop has it: each earlier copy of the end, measured backwards."""
    out = np.zeros(V)
    for at in range(len(history)):
        length = 0
        while length < at and history[at - 1 - length] == history[-1 - length]:
            if history[-1 - length] in breakers:
                break
            length += 1
        if length >= allowed:
            out[history[at]] = max(out[history[at]], multiplier * base ** (length - allowed))
    return out.astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_dry_punishes_what_goes_on_with_a_repetition(seed: int) -> None:
    random = np.random.default_rng(seed)
    history = (*(int(token) for token in random.integers(0, 3, 28)), 0, 1)
    breakers = {2} if seed % 2 else set()
    breaker = [1.0 if token in breakers else 0.0 for token in range(V)]
    logits = drawn_logits(seed)
    found = scores("dry", logits, history, multiplier=0.8, base=1.5, allowed_length=2, breaker=breaker)
    wanted = dry_penalties(history, 0.8, 1.5, 2, breakers)
    assert wanted.any()
    assert found == pytest.approx(logits - wanted, abs=1e-4)


@pytest.mark.parametrize(("version", "tolerance"), [(1, 0.8), (2, 0.4)])
@pytest.mark.parametrize("tau", [2.5, 3.5])
def test_mirostat_keeps_the_surprise_near_its_aim(version: int, tolerance: float, tau: float) -> None:
    logits = np.sort(drawn_logits(1, spread=2.5))[::-1].copy()
    surprise = -np.log2(np.exp(logits) / np.exp(logits).sum())
    program = bound("mirostat", {"tau": tau, "rate": 0.2, "version": version})
    state, seen = first_state(program.graph, program.parameters, V), []
    for step in range(300):
        result = run(program.graph, StepValues(vocab_size=V, logits=logits, key=step * 7919), program.parameters, state)
        state = dict(result.state)
        seen.append(surprise[result.token])
    assert np.mean(seen[50:]) == pytest.approx(tau, abs=tolerance)


def test_mirostat_still_draws_where_a_constraint_leaves_little() -> None:
    logits = np.full(V, -np.inf, dtype=np.float32)
    logits[[3, 8]] = [0.0, 1.0]
    for version in (1, 2):
        program = bound("mirostat", {"tau": 3.0, "rate": 0.2, "version": version})
        found = run(program.graph, StepValues(vocab_size=V, logits=logits, key=5), program.parameters)
        assert found.token in (3, 8)


@pytest.mark.parametrize("name", ["watermark_greenlist", "gumbel_watermark"])
def test_a_detector_hashes_as_the_device_does(name: str) -> None:
    space: dict[str, Any] = {}
    tree = ast.parse(shipped_source(name))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "hash_uniform"]
    exec(compile(ast.Module(body=[*tree.body[2:5], *wanted], type_ignores=[]), name, "exec"), space)
    source = "def sample(name, index):\n    probe.u = hash_uniform(name, index)\n    return 0\n"
    for label, index in [(0, 0), (2**40 + 7, 49151), (-5, 12), (2**63 - 1, 1)]:
        program = bind(source, {"name": label, "index": index}, V)
        device = run(program.graph, StepValues(vocab_size=V), program.parameters).probes["u"]
        assert space["hash_uniform"](label % 2**64, index) == pytest.approx(float(device), rel=1e-6)
