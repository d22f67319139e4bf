"""Passes that compute several operations at once: the bits of the torch form, in every form this machine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.native.library import FORM_VARIABLE, native_module
from engine.native.passes import MOST_REGISTERS, OPERATIONS, NativePasses
from engine.programs.binding import bind
from engine.programs.errors import ProgramInvalid
from engine.programs.fused import MOST_STEPS, Group, arrange
from engine.programs.graph import Graph
from engine.programs.torch_form import BatchResult, BatchValues, TorchProgram
from tests.engine.programs.random_programs import exact_programs
from tests.native.forms import BEST, FORMS, needs_native

CPU = torch.device("cpu")
TEAM_SIZE = 2
HEAD = "def sample(logits, lanes, key, prev, step, history, counts, scale, bias):\n"

pytestmark = needs_native


def graph_of(source: str, vocab_size: int) -> Graph:
    return bind(source, {"scale": 0.5, "bias": [0.0] * vocab_size}, vocab_size).graph


def step_of(vocab_size: int, num_rows: int, seed: int) -> BatchValues:
    """A step with numbers of all sorts: small, equal, zeros of both signs, infinities, NaN."""
    rng = torch.Generator().manual_seed(seed)
    lanes = [torch.randn((num_rows, vocab_size), generator=rng) for _ in range(2)]
    for at, value in enumerate((torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1.5)):
        lanes[0][:, (at * 7 + seed) % vocab_size] = value
    history = torch.randint(0, vocab_size, (num_rows, 5), generator=rng)
    return BatchValues(
        lanes=lanes,
        keys=torch.randint(-(2**62), 2**62, (num_rows,), generator=rng),
        steps=torch.arange(num_rows),
        history=history,
        lengths=torch.full((num_rows,), 5),
        counts=torch.zeros((num_rows, vocab_size), dtype=torch.int64).scatter_(1, history, 1),
        parameters={
            "scale": torch.randn((num_rows, 1), generator=rng),
            "bias": torch.randn((num_rows, vocab_size), generator=rng),
        },
        state={},
    )


def assert_same(found: BatchResult, wanted: BatchResult) -> None:
    for one, other in zip(values_of(found), values_of(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def values_of(result: BatchResult) -> list[torch.Tensor]:
    named = {**result.probes, **result.state}
    drawn = [one for one in (result.tokens, result.scores) if one is not None]
    return [*drawn, *[named[name] for name in sorted(named)]]


def compare(source: str, vocab_size: int, num_rows: int, seed: int, **options: Any) -> None:
    graph = graph_of(source, vocab_size)
    programs = [TorchProgram(graph, vocab_size, CPU, native=native, **options) for native in (True, False)]
    step = step_of(vocab_size, num_rows, seed)
    if graph.states:
        first = programs[1].first_state(step.parameters, num_rows)
        step = BatchValues(**{name: getattr(step, name) for name in BatchValues.__slots__} | {"state": first})
    for defer in (False, True):
        found, wanted = (program.run(step, defer=defer) for program in programs)
        assert_same(found, wanted)


EVERY_OPERATION = {
    "arithmetic": "probe.x = -(logits + scale) * (bias - 2.5) / (logits * step)",
    "division by zero": "probe.x = logits / (logits - logits) + bias / 0.0",
    "roots": "probe.x = sqrt(logits) - sqrt(abs(logits)) + abs(-bias)",
    "comparisons": "probe.x = (logits < bias) & (logits * scale <= 0.5) | (logits > scale) ^ (bias >= logits)",
    "equality": "probe.x = (logits == 1.5) | (logits != logits) & ~(bias == scale)",
    "choices": "probe.x = where((logits > 0) & (scale < 9.0), where(bias < 0, 1.0, logits), -1e30)",
    "truth values of choices": "probe.x = where(logits > 0, bias < 0, bias > 1) & True",
    "names": "probe.x = where(hash_uniform(prev, vocab) < 0.25, 2.0, 0.0) + hash_uniform(7, vocab) * scale",
    "keys": "probe.x = uniform(key, logits) - uniform(key, logits) * bias",
    "what a row decides": "probe.x = where(logits / 2.0 >= max(bias) - scale, bias * 2.0, sum(bias * bias) + 0.5)",
}


@pytest.mark.parametrize("body", EVERY_OPERATION.values(), ids=EVERY_OPERATION.keys())
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("vocab_size", [50, 1031])
def test_every_operation_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, form: str, vocab_size: int, body: str
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, form)
    source = f"{HEAD}    {body}\n    return gumbel_argmax(logits + where(bias < 0.25, scale, 0.0), key)\n"
    order = arrange(graph_of(source, vocab_size), *whole(graph_of(source, vocab_size)))
    assert any(isinstance(one, Group) for one in order)
    compare(source, vocab_size, 3, 1)


def whole(graph: Graph) -> tuple[range, list[int]]:
    """All nodes, and those that are kept."""
    return range(len(graph.nodes)), [graph.token, *graph.probes.values(), *graph.updates.values()]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=exact_programs(), seed=st.integers(0, 10**6), num_rows=st.integers(1, 4))
def test_random_programs_give_the_same_bits(source: str, seed: int, num_rows: int) -> None:
    try:
        compare(source, 70, num_rows, seed)
    except ProgramInvalid as error:
        assume("values" not in error.message and "deep" not in error.message)
        raise


def test_threads_give_the_same_bits() -> None:
    module = native_module()
    assert module is not None
    source = f"{HEAD}    return gumbel_argmax(where(hash_uniform(prev, vocab) < 0.5, logits, bias * scale), key)\n"
    compare(source, 40_000, 8, 4)
    graph, step = graph_of(source, 40_000), step_of(40_000, 8, 5)
    alone, together = (
        TorchProgram(graph, 40_000, CPU, team=team).run(step, defer=True) for team in (None, module.new_team(TEAM_SIZE))
    )
    assert_same(together, alone)


def test_scores_written_over_the_logits_are_those_written_elsewhere() -> None:
    source = f"{HEAD}    green = hash_uniform(prev, vocab) < 0.5\n"
    source += "    return gumbel_argmax(where(green & (logits > bias), logits * 2.0, bias) + logits, key)\n"
    for vocab_size in (1031, 5000):
        program = TorchProgram(graph_of(source, vocab_size), vocab_size, CPU)
        step = step_of(vocab_size, 3, 6)
        wanted = program.run(step, defer=True).scores
        found = program.run(replace(step, room=step.lanes[0]), defer=True).scores
        assert wanted is not None
        assert found is not None
        assert found.data_ptr() == step.lanes[0].data_ptr() != wanted.data_ptr()
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_what_all_requests_share_is_computed_once() -> None:
    source = f"{HEAD}    return argmax(where(hash_uniform(3, vocab) < 0.5, 1.0, 0.0))\n"
    compare(source, 600, 5, 2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=exact_programs())
def test_every_node_is_computed_once_and_after_what_it_needs(source: str) -> None:
    try:
        graph = graph_of(source, 70)
    except ProgramInvalid:
        assume(False)
        raise
    nodes, outputs = whole(graph)
    known: set[int] = set()
    computed: list[int] = []
    for one in arrange(graph, nodes, outputs):
        if isinstance(one, Group):
            assert known.issuperset(one.args)
            assert len(one.nodes) <= MOST_STEPS
            assert len(one.nodes) + len(one.args) <= MOST_REGISTERS
            known.update(one.outputs)
            computed += one.nodes
        else:
            assert known.issuperset(graph.nodes[one].args)
            known.add(one)
            computed.append(one)
    assert sorted(computed) == list(nodes)
    assert known.issuperset(outputs)


ADD, UNIFORM = OPERATIONS.index("add"), OPERATIONS.index("uniform")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [[ADD, 0, 2, 0]]}, "operand"),
        ({"steps": [[ADD, -1, 0, 0]]}, "operand"),
        ({"steps": [[len(OPERATIONS), 0, 0, 0]]}, "operation"),
        ({"steps": [[UNIFORM, 1, 0, 0]]}, "key"),
        ({"steps": [[ADD, 0, 0, 0]] * MOST_REGISTERS}, "too many"),
        ({"vectors": [np.zeros((2, 9), np.float32)]}, "row"),
        ({"outputs": [(0, np.zeros((3, 9), np.float32))]}, "rows"),
        ({"outputs": [(1, np.zeros((3, 10), np.float32))]}, "step"),
        ({"keys": np.zeros((2, 1, 2), np.int32)}, "keys"),
        ({"scalars": np.zeros((0, 1), np.float32)}, "rows"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    module = native_module()
    assert module is not None
    passes = NativePasses(module, BEST, np.zeros(10, np.int32))
    out = np.full((3, 10), 7, np.float32)
    given: dict[str, Any] = {
        "steps": [[ADD, 0, 1, 1]],
        "vectors": [np.ones((3, 10), np.float32)],
        "scalars": np.ones((3, 1), np.float32),
        "keys": np.zeros((3, 1, 2), np.int32),
        "outputs": [(0, out)],
    } | change
    given["steps"] = np.array(given["steps"], np.int32)
    with pytest.raises(ValueError, match=message):
        passes.run(**given)
    assert (out == 7).all()
