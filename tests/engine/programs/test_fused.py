"""Passes that compute several operations at once: the bits of the torch form, in every form this machine has."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.native.library import FORM_VARIABLE, native_module
from engine.native.passes import MOST_REGISTERS, OPERATIONS, NativePasses
from engine.native.sampling import LANE, NO_MASKS, Memory, find_native_sampling
from engine.programs.binding import bind
from engine.programs.errors import ProgramInvalid
from engine.programs.fused import MOST_STEPS, Group, arrange
from engine.programs.graph import Graph
from engine.programs.torch_form import BatchResult, BatchValues, TorchProgram
from engine.sampling.random import mix64
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


def compare(source: str, vocab_size: int, num_rows: int, seed: int) -> None:
    """One program in torch, in passes, and in passes that draw."""
    graph = graph_of(source, vocab_size)
    reference = TorchProgram(graph, vocab_size, CPU, native=False)
    in_passes = TorchProgram(graph, vocab_size, CPU, joins_draw=False)
    step = step_of(vocab_size, num_rows, seed)
    if graph.states:
        step = msgspec.structs.replace(step, state=reference.first_state(step.parameters, num_rows))
    wanted = reference.run(step)
    for defer in (False, True):
        assert_same(in_passes.run(step, defer=defer), reference.run(step, defer=defer))
    assert_same(TorchProgram(graph, vocab_size, CPU).run(step), wanted)


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
    for joins_draw in (False, True):
        alone, together = (
            TorchProgram(graph, 40_000, CPU, team=team, joins_draw=joins_draw).run(step, defer=True)
            for team in (None, module.new_team(TEAM_SIZE))
        )
        assert_same(together, alone)


def test_scores_written_over_the_logits_are_those_written_elsewhere() -> None:
    source = f"{HEAD}    green = hash_uniform(prev, vocab) < 0.5\n"
    source += "    return gumbel_argmax(where(green & (logits > bias), logits * 2.0, bias) + logits, key)\n"
    for vocab_size in (1031, 5000):
        program = TorchProgram(graph_of(source, vocab_size), vocab_size, CPU, joins_draw=False)
        step = step_of(vocab_size, 3, 6)
        wanted = program.run(step, defer=True).scores
        found = program.run(msgspec.structs.replace(step, room=step.lanes[0]), defer=True).scores
        assert wanted is not None
        assert found is not None
        assert found.data_ptr() == step.lanes[0].data_ptr() != wanted.data_ptr()
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_what_all_requests_share_is_computed_once() -> None:
    source = f"{HEAD}    return argmax(where(hash_uniform(3, vocab) < 0.5, 1.0, 0.0))\n"
    compare(source, 600, 5, 2)


DRAWN = {
    "one operation": "logits / scale",
    "a watermark": "logits + where(hash_uniform(prev, vocab) < 0.25, 2.0, 0.0)",
    "noise of its own": "logits + uniform(key, logits) * 3.0",
    "two rows": "lanes[0].logits * 2.0 - lanes[1].logits",
    "behind a sum": "logits - max(bias) * bias + sum(bias)",
    "a choice": "where((logits > bias) & (bias < 1.0), scale, logits)",
    "in parts": "logits" + " * 1.125 + bias" * 12,
}
"""Scores that a pass makes."""

ODD = {
    "plain": {},
    "not a number": {3: torch.nan, 11: torch.nan},
    "infinite": {5: torch.inf},
    "equally infinite": {5: torch.inf, 2: torch.inf},
    "impossible": {7: -torch.inf, 0: -torch.inf},
    "large": {4: 3e38, 9: -3e38},
}
"""What single logits are."""


def step_with(values: dict[int, float], vocab_size: int, *, rows: slice) -> BatchValues:
    """Five rows, of which some have these logits at these places."""
    step = step_of(vocab_size, 5, 3)
    rng = torch.Generator().manual_seed(17)
    logits = torch.randn((5, vocab_size), generator=rng) * 3
    for place, value in values.items():
        logits[rows, place] = value
    return msgspec.structs.replace(step, lanes=[logits, step.lanes[1]])


def drawn_from(result: BatchResult, step: BatchValues) -> list[int]:
    """What a program drew, or what the sampler draws from its scores."""
    found: list[int]
    if result.tokens is not None:
        found = result.tokens.tolist()
        return found
    assert result.scores is not None
    assert step.keys is not None
    num_rows, vocab_size = result.scores.shape
    sampling = find_native_sampling(vocab_size)
    assert sampling is not None
    lanes = np.zeros(num_rows, LANE)
    for name, value in {"temperature": 1.0, "top_k": vocab_size, "top_p": np.inf}.items():
        lanes[name] = value
    for name in ("counts_slot", "history_slot", "mask"):
        lanes[name] = -1
    lanes["row"] = np.arange(num_rows)
    lanes["stream_key"], lanes["position"] = streams_of(step.keys.numpy()), 0
    memory = Memory(np.zeros(num_rows, np.int64), np.empty(0, np.int32), np.empty((0, 1), np.int64))
    found = sampling.choose_tokens(result.scores.contiguous().numpy().copy(), lanes, NO_MASKS, memory).tolist()
    return found


def streams_of(keys: npt.NDArray[np.int64]) -> list[int]:
    """Streams whose first position has these keys: `mix64` is undone, a multiplication by its inverse at a time."""
    found = []
    for key in keys.tolist():
        value = key % 2**64
        for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
            undone = value
            for _ in range(3):
                undone = value ^ (undone >> shift)
            value = undone * pow(factor, -1, 2**64) % 2**64
        value = (value - 0x9E3779B97F4A7C15) % 2**64
        found.append(value - 2**64 if value >= 2**63 else value)
    return found


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("scores", DRAWN.values(), ids=DRAWN.keys())
@pytest.mark.parametrize("form", FORMS)
def test_a_pass_that_draws_takes_the_tokens_that_are_drawn_behind_it(
    monkeypatch: pytest.MonkeyPatch, form: str, scores: str, odd: dict[int, float]
) -> None:
    monkeypatch.setenv(FORM_VARIABLE, form)
    for vocab_size, rows in ((50, slice(1, 2)), (1031, slice(None)), (20_000, slice(2, None))):
        graph = graph_of(f"{HEAD}    return gumbel_argmax({scores}, key)\n", vocab_size)
        step = step_with(odd, vocab_size, rows=rows)
        joint = TorchProgram(graph, vocab_size, CPU)
        assert joint.run(step).is_drawn or odd
        deferred = TorchProgram(graph, vocab_size, CPU, joins_draw=False).run(step, defer=True)
        assert (deferred.tokens is None) == joint.can_defer
        assert drawn_from(joint.run(step, defer=True), step) == drawn_from(deferred, step)
        torch_form = TorchProgram(graph, vocab_size, CPU, native=False)
        assert drawn_from(joint.run(step), step) == drawn_from(torch_form.run(step), step)


@pytest.mark.parametrize(
    ("logits", "is_drawn"),
    [(0.0, True), (-torch.inf, True), (torch.nan, True), (torch.inf, False)],
    ids=["equal", "impossible", "not a number", "infinite"],
)
def test_only_rows_that_must_be_put_right_are_drawn_from_behind_the_pass(logits: float, is_drawn: bool) -> None:
    graph = graph_of(f"{HEAD}    return gumbel_argmax(logits * scale, key)\n", 50)
    step = msgspec.structs.replace(
        step_of(50, 2, 1), lanes=[torch.full((2, 50), logits)] * 2, parameters={"scale": torch.ones(2, 1)}
    )
    found = TorchProgram(graph, 50, CPU).run(step, defer=True)
    assert found.is_drawn == is_drawn
    assert (found.tokens is None) != is_drawn
    if np.isnan(logits) or np.isinf(logits):
        assert drawn_from(found, step) == ([0, 0] if is_drawn else drawn_from(found, step))


def test_what_is_kept_of_scores_is_there_beside_their_draw() -> None:
    source = "state.last = 0.0\n\n" + HEAD.replace("logits, lanes", "logits")
    source += "    scores = logits * 2.0 + bias\n    state.last = sum(scores) + state.last\n"
    source += "    probe.scores = scores\n    probe.high = scores > 0.5\n    return gumbel_argmax(scores, key)\n"
    graph = graph_of(source, 600)
    step = msgspec.structs.replace(
        step_with({}, 600, rows=slice(None)), state={"last": torch.arange(5, dtype=torch.float32)[:, None]}
    )
    found = TorchProgram(graph, 600, CPU).run(step, defer=True)
    assert found.is_drawn
    assert_same(found, msgspec.structs.replace(TorchProgram(graph, 600, CPU, native=False).run(step), is_drawn=True))


def test_a_token_that_is_needed_again_is_not_drawn_in_a_pass() -> None:
    graph = graph_of(f"{HEAD}    t = gumbel_argmax(logits * 2.0, key)\n    probe.t = t\n    return t\n", 70)
    step = step_with({}, 70, rows=slice(None))
    found = TorchProgram(graph, 70, CPU).run(step, defer=True)
    assert not found.is_drawn
    assert_same(found, TorchProgram(graph, 70, CPU, native=False).run(step, defer=True))


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
        ({"scores": (1, 0)}, "draw"),
        ({"scores": (-1, 0)}, "draw"),
        ({"scores": (0, 1)}, "key"),
        ({"scores": (0, -1)}, "key"),
        ({"numbers": np.zeros(2, np.int64)}, "numbers"),
        ({"steps": [[ADD, 0, 2, 0]]}, "operand"),
        ({"steps": [[ADD, -1, 0, 0]]}, "operand"),
        ({"steps": [[len(OPERATIONS), 0, 0, 0]]}, "operation"),
        ({"steps": [[UNIFORM, 1, 0, 0]]}, "key"),
        ({"steps": [[ADD, 0, 0, 0]] * MOST_REGISTERS}, "too many"),
        ({"vectors": [np.zeros((2, 9), np.float32)]}, "row"),
        ({"outputs": [(0, np.zeros((3, 9), np.float32))]}, "rows"),
        ({"outputs": [(1, np.zeros((3, 10), np.float32))]}, "step"),
        ({"keys": np.zeros((2, 1), np.int64)}, "keys"),
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
        "keys": np.zeros((3, 1), np.int64),
        "numbers": np.zeros(1, np.int64),
        "outputs": [(0, out)],
    } | change
    given["steps"] = np.array(given["steps"], np.int32)
    with pytest.raises(ValueError, match=message):
        passes.draw(**{"scores": (0, 0)} | given)
    if "scores" not in change:
        with pytest.raises(ValueError, match=message):
            passes.run(**given)
    assert (out == 7).all()


@given(names=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), position=st.integers(0, 2**63 - 2))
def test_keys_of_positions_are_those_of_the_sampler(names: list[int], position: int) -> None:
    module = native_module()
    assert module is not None
    passes = NativePasses(module, BEST, np.zeros(10, np.int32))
    found = passes.position_keys(np.array(names), np.full(len(names), position))
    wanted = [mix64(name + (position + 1) * 0x9E3779B97F4A7C15) for name in names]
    assert [key % 2**64 for key in found.tolist()] == wanted
