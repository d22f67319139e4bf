"""Kernels of groups of a device program's nodes: the bits of the torch form."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.cuda.program_passes import KernelPasses
from engine.programs.binding import bind
from engine.programs.errors import ProgramInvalid
from engine.programs.fused import Group, arrange
from engine.programs.graph import Graph
from engine.programs.torch_form import BatchResult, BatchValues, TorchProgram
from tests.engine.cuda.amounts import some
from tests.engine.programs.random_programs import exact_programs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, where infinities are met

HEAD = "def sample(logits, lanes, key, prev, step, history, counts, scale, bias):\n"


def graph_of(source: str, vocab_size: int) -> Graph:
    return bind(source, {"scale": 0.5, "bias": [0.0] * vocab_size}, vocab_size).graph


def step_of(vocab_size: int, num_rows: int, seed: int, device: torch.device) -> BatchValues:
    """A step with numbers of all sorts: small, equal, next to zero, zeros of both signs, infinities, NaN."""
    rng = torch.Generator().manual_seed(seed)
    lanes = [torch.randn((num_rows, vocab_size), generator=rng) for _ in range(2)]
    for at, value in enumerate((torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1.5, 1e-41, -1e-41, -3e38, 5e18)):
        lanes[0][:, (at * 7 + seed) % vocab_size] = value
    history = torch.randint(0, vocab_size, (num_rows, 5), generator=rng)
    counts = torch.zeros((num_rows, vocab_size), dtype=torch.int64).scatter_(1, history, 1)
    parameters = {
        "scale": torch.randn((num_rows, 1), generator=rng),
        "bias": torch.randn((num_rows, vocab_size), generator=rng),
    }
    return BatchValues(
        lanes=[lane.to(device) for lane in lanes],
        keys=torch.randint(-(2**62), 2**62, (num_rows,), generator=rng).to(device),
        steps=torch.arange(num_rows, device=device),
        history=history.to(device),
        lengths=torch.full((num_rows,), 5, device=device),
        counts=counts.to(device),
        parameters={name: value.to(device) for name, value in parameters.items()},
    )


def values_of(result: BatchResult) -> list[torch.Tensor]:
    named = {**result.probes, **result.state}
    drawn = [one for one in (result.tokens, result.scores) if one is not None]
    return [*drawn, *[named[name] for name in sorted(named)]]


def assert_same(found: BatchResult, wanted: BatchResult) -> None:
    for one, other in zip(values_of(found), values_of(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.cpu().numpy(), other.cpu().numpy())


def compare(source: str, vocab_size: int, num_rows: int, seed: int, device: torch.device) -> None:
    graph = graph_of(source, vocab_size)
    plain = TorchProgram(graph, vocab_size, device, native=False)
    passes = KernelPasses(vocab_size, device)
    in_passes = TorchProgram(graph, vocab_size, device, joins_draw=False, passes=passes)
    step = step_of(vocab_size, num_rows, seed, device)
    if graph.states:
        step = msgspec.structs.replace(step, state=plain.first_state(step.parameters, num_rows))
    for defer in (False, True):
        assert_same(in_passes.run(step, defer=defer), plain.run(step, defer=defer))


def groups_of(source: str, vocab_size: int) -> Sequence[Group]:
    graph = graph_of(source, vocab_size)
    outputs = [graph.token, *graph.probes.values(), *graph.updates.values()]
    order = arrange(graph, range(len(graph.nodes)), outputs, passes=KernelPasses(vocab_size, torch.device("cpu")))
    return [one for one in order if isinstance(one, Group)]


EVERY_OPERATION = {
    "arithmetic": "probe.x = -(logits + scale) * (bias - 2.5) / (logits * step)",
    "products and sums": "probe.x = logits * bias + scale * bias - logits * 3.7 * scale",
    "division by zero": "probe.x = logits / (logits - logits) + bias / 0.0",
    "roots": "probe.x = sqrt(logits) - sqrt(abs(logits)) + abs(-bias)",
    "zeros of both signs": "probe.x = 1.0 / -(logits * 0.0) + 1.0 / (0.0 - logits * 0.0)",
    "whole parts": "probe.x = floor(logits * 2.0) + floor(bias) + float(int(logits)) * 0.5",
    "extremes": "probe.x = max(logits, bias) - min(logits, scale) + clamp(logits, -scale, 1.5)",
    "extremes of truth values": "probe.x = max(logits > 0, bias > 0) ^ min(logits > 1, bias < scale)",
    "comparisons": "probe.x = (logits < bias) & (logits * scale <= 0.5) | (logits > scale) ^ (bias >= logits)",
    "equality": "probe.x = (logits == 1.5) | (logits != logits) & ~(bias == scale)",
    "truth values in order": "probe.x = ((logits > 0) < (bias > 0)) | ((logits > 0) >= (scale > 0))",
    "choices": "probe.x = where((logits > 0) & (scale < 9.0), where(bias < 0, 1.0, logits), -1e30)",
    "truth values of choices": "probe.x = where(logits > 0, bias < 0, bias > 1) & True",
    "whole numbers": "probe.x = where(vocab % 3 == 1, vocab * 2 - prev, -vocab) // 4 + (counts & 1 | vocab ^ step)",
    "whole division": "probe.x = (vocab - 20) // (vocab - 23) * 1000 + (20 - vocab) % (vocab - 24) + abs(prev - vocab)",
    "whole division of single values": "probe.x = (prev * 9223372036854775807) // -step - (prev - 40) % (step - 3)",
    "whole numbers as floats": "probe.x = float(counts) * scale + float(vocab % 7) - float(prev * 1234567891)",
    "names": "probe.x = where(hash_uniform(prev, vocab) < 0.25, 2.0, 0.0) + hash_uniform(7, vocab) * scale",
    "names of groups": "probe.x = hash_uniform(prev, vocab // 5 - 3) + hash_uniform(prev, prev + 1)",
    "keys": "probe.x = uniform(key, logits) - uniform(key, logits) * bias + uniform(key)",
    "one token": "probe.x = where(one_hot(prev), scale, zeros(logits)) + where(one_hot(history[-2]), 1.0, bias)",
    "single values": "probe.x = scale * 0.5 + float(prev % 7) / float(step + 1) + uniform(key)",
    "what a row decides": "probe.x = where(logits / 2.0 >= max(bias) - scale, bias * 2.0, sum(bias * bias) + 0.5)",
    "state": "state.s = state.s * 0.5 + scale\n    state.v = where(one_hot(prev), 1.0, state.v * scale)",
}


@pytest.mark.parametrize("body", EVERY_OPERATION.values(), ids=EVERY_OPERATION.keys())
@pytest.mark.parametrize(("vocab_size", "num_rows"), some([(50, 3), (1031, 1), (151936, 8)], [(50, 3), (1031, 1)]))
def test_every_operation_gives_the_same_bits(device: torch.device, vocab_size: int, num_rows: int, body: str) -> None:
    states = "state.s = 0.0\nstate.v = zeros(vocab)\n\n" if "state" in body else ""
    source = f"{states}{HEAD}    {body}\n    return gumbel_argmax(logits + where(bias < 0.25, scale, 0.0), key)\n"
    assert groups_of(source, vocab_size)
    compare(source, vocab_size, num_rows, 1, device)


@settings(max_examples=some(300, 40), suppress_health_check=list(HealthCheck))
@given(source=exact_programs(), seed=st.integers(0, 10**6), num_rows=st.integers(1, 4))
def test_random_programs_give_the_same_bits(device: torch.device, source: str, seed: int, num_rows: int) -> None:
    try:
        compare(source, 70, num_rows, seed, device)
    except ProgramInvalid as error:
        assume("values" not in error.message and "deep" not in error.message)
        raise
