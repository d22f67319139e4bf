"""The meaning of device programs: one request, one step, plain NumPy. Other forms are compared with this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.programs.graph import Graph, Node
from engine.programs.types import VOCAB, Kind, Type, common_kind
from engine.programs.values import Array, GuessResult, StepResult, StepValues
from engine.sampling.random import UNIFORM_SCALE, mix32, mix64

GAMMA = 0x9E3779B97F4A7C15
"""What the keys of successive draws differ by, before mixing (SplitMix64's increment)."""

DTYPES: Mapping[Kind, type[np.generic]] = {Kind.BOOL: np.bool_, Kind.INT: np.int64, Kind.FLOAT: np.float32}
GREATEST_INT = 2**62
"""What `int` of a greater number is."""

_MIX32_A = np.uint32(0x7FEB352D)
_MIX32_B = np.uint32(0x846CA68B)


def first_state(graph: Graph, parameters: Mapping[str, Any], vocab_size: int) -> dict[str, Array]:
    """State before the first step."""
    found = Evaluation(graph, StepValues(vocab_size=vocab_size), parameters, {})
    return {name: found.shaped(node, kind) for name, (kind, node) in graph.states.items()}


def run(
    graph: Graph, values: StepValues, parameters: Mapping[str, Any], state: Mapping[str, Array] | None = None
) -> StepResult:
    """One step of a program.

    Args:
        graph: The program.
        values: What the step knows.
        parameters: Values of the program's own parameters, of the types the graph was made for.
        state: As the step before left it; None before the first.
    """
    if state is None:
        state = first_state(graph, parameters, values.vocab_size)
    found = Evaluation(graph, values, parameters, state)
    return StepResult(
        token=int(found.value(graph.token)),
        state={name: found.shaped(node, graph.states[name][0]) for name, node in graph.updates.items()},
        probes={name: found.value(node) for name, node in graph.probes.items()},
    )


def propose(
    graph: Graph, values: StepValues, parameters: Mapping[str, Any], state: Mapping[str, Array] | None = None
) -> GuessResult:
    """What a program guesses.

    Args:
        graph: One with guesses.
        values: What is known before the step; neither logits nor lanes.
        parameters: As for `run`.
        state: As the guess before left it; None before the first.
    """
    if state is None:
        state = first_state(graph, parameters, values.vocab_size)
    found = Evaluation(graph, values, parameters, state)
    tokens = [int(token) for node in graph.guesses for token in np.atleast_1d(found.value(node))]
    weights = [np.asarray(found.value(node), dtype=np.float32) for node in graph.weights]
    updates = {name: found.shaped(node, graph.states[name][0]) for name, node in graph.updates.items()}
    return GuessResult(tokens, weights, updates)


def result(graph: Graph, values: StepValues, parameters: Mapping[str, Any]) -> Array:
    """What a function without state returns."""
    found: Array = Evaluation(graph, values, parameters, {}).value(graph.token)
    return found


class Evaluation:
    """Computes nodes when they are asked for, each once.

    Args:
        graph: The program.
        values: What is known.
        parameters: Values of the program's own parameters.
        state: As it was left before.
    """

    def __init__(
        self, graph: Graph, values: StepValues, parameters: Mapping[str, Any], state: Mapping[str, Array]
    ) -> None:
        self._graph = graph
        self._step = values
        self._parameters = parameters
        self._state = state
        self._known: dict[int, Any] = {}

    def value(self, index: int) -> Any:
        """A node's value: a NumPy array or scalar of its type."""
        # Nodes refer to earlier ones only: computing upwards needs no recursion, however long a program is.
        for at in self._needed(index):
            node = self._graph.nodes[at]
            self._known[at] = self.compute(node, [self._known[arg] for arg in node.args])
        return self._known[index]

    def compute(self, node: Node, args: list[Any]) -> Any:
        """A node's value from those of what it is made of."""
        with np.errstate(all="ignore"):
            found = self._compute(node, args)
        return np.asarray(found, dtype=None if node.type.kind is Kind.KEY else DTYPES[node.type.kind])

    def shaped(self, index: int, kind: Type) -> Array:
        """A node's value, repeated to the shape of a type."""
        shape = () if kind.axis is None else (self._step.vocab_size,)
        result: Array = np.broadcast_to(self.value(index), shape).astype(DTYPES[kind.kind])
        return result

    def _needed(self, index: int) -> list[int]:
        needed, todo = set(), [index]
        while todo:
            at = todo.pop()
            if at not in needed and at not in self._known:
                needed.add(at)
                todo += self._graph.nodes[at].args
        return sorted(needed)

    def _compute(self, node: Node, args: list[Any]) -> Any:
        types = [self._graph.nodes[arg].type for arg in node.args]
        match node.op:
            case "constant":
                return node.attributes[0]
            case "parameter":
                return self._parameters[str(node.attributes[0])]
            case "state":
                return self._state[str(node.attributes[0])]
            case "input":
                return self._input(str(node.attributes[0]))
            case "lane":
                return self._step.lanes[int(node.attributes[0])]
            case "vocab":
                return np.arange(self._step.vocab_size)
            case "vocab_size":
                return self._step.vocab_size
            case "one_hot":
                return np.arange(self._step.vocab_size) == args[0]
            case "recent":
                place = int(node.attributes[0])
                return args[0][-place] if place <= len(args[0]) else -1
            case "shift":
                return _shift(args[0], int(node.attributes[0]))
            case "top":
                return _order(args[0])[: int(node.attributes[0])]
            case "hash_uniform":
                return _uniform(mix64(int(args[0]) + GAMMA), args[1])
            case "uniform" | "gumbel" | "gumbel_argmax" | "categorical":
                return self._draw(node, args)
            case op if op in ALIKE:
                kind = DTYPES[common_kind(*types, at_least=ALIKE[op][0])]
                return ALIKE[op][1](*[arg.astype(kind) for arg in args])
            case op:
                return _OTHERS[op](*args)

    def _input(self, name: str) -> Any:
        if name in self._step.others:
            return self._step.others[name]
        if name == "prev":
            return self._step.history[-1] if len(self._step.history) else -1
        if name == "places":
            return np.arange(len(self._step.history))
        found = getattr(self._step, name)
        assert found is not None, f"the step does not know {name}"
        return found

    def _draw(self, node: Node, args: list[Any]) -> Any:
        number = int(node.attributes[0])
        key = int(args[-1] if node.op != "uniform" else args[0])
        key = key if number == 0 else mix64(key + number * GAMMA)
        size = self._step.vocab_size if node.type.axis in (None, VOCAB) else int(str(node.type.axis))
        match node.op:
            case "uniform":
                return _uniform(key, np.zeros((), dtype=np.int64) if node.type.axis is None else np.arange(size))
            case "gumbel":
                return _gumbel(key, size)
            case "gumbel_argmax":
                scores = args[0].astype(np.float32)
            case _:
                scores = np.log(args[0].astype(np.float32))
        limit = np.finfo(np.float32).max
        finite = np.minimum(np.where(np.isnan(scores), -np.inf, scores), limit).astype(np.float64)
        return np.argmax(finite + _gumbel(key, len(finite)))


def _bits(key: int, index: Array) -> npt.NDArray[np.float32]:
    """m of `engine.sampling.random.uniform_bits`, as float32."""
    flat = np.atleast_1d(index).astype(np.int64) & 0xFFFFFFFF
    value = np.array([mix32(int(one)) for one in flat] if len(flat) < 64 else _mix32(flat), dtype=np.uint32)
    value = (value ^ np.uint32(key & 0xFFFFFFFF)) * _MIX32_A
    value = value ^ (value >> np.uint32(15)) ^ np.uint32(key >> 32)
    value = value * _MIX32_B
    m = 2**31 - (value & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return m.astype(np.float32).reshape(np.shape(index))


def _mix32(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    value = values.astype(np.uint32)
    value = (value ^ (value >> np.uint32(16))) * _MIX32_A
    value = (value ^ (value >> np.uint32(15))) * _MIX32_B
    return value ^ (value >> np.uint32(16))


def _uniform(key: int, index: Array) -> npt.NDArray[np.float32]:
    return _bits(key, index) * np.float32(UNIFORM_SCALE)


def _gumbel(key: int, size: int) -> npt.NDArray[np.float64]:
    unit = _bits(key, np.arange(size)).astype(np.float64) * UNIFORM_SCALE
    noise: npt.NDArray[np.float64] = -np.log(-np.log1p(-unit))
    return noise


def _without_nan(x: Any) -> Any:
    return np.where(np.isnan(x), -np.inf, x).astype(x.dtype) if x.dtype == np.float32 else x


def _order(x: Any) -> Any:
    x = _without_nan(x)
    return np.argsort(-x if x.dtype == np.float32 else ~x.astype(np.int64), kind="stable")


def _rank(x: Any) -> Any:
    order = _order(x)
    ranks = np.empty(len(x), dtype=np.int64)
    ranks[order] = np.arange(len(x))
    return ranks


def _sum(x: Any) -> Any:
    return x.sum(dtype=np.float64 if x.dtype == np.float32 else np.int64)


def _cumsum(x: Any) -> Any:
    return x.cumsum(dtype=np.float64 if x.dtype == np.float32 else np.int64)


def _exponentials(x: Any) -> tuple[Any, Any]:
    """x less its maximum, and the exponentials of that."""
    x = x.astype(np.float32)
    shifted = x - _max(x)
    return shifted, np.exp(shifted)


def _softmax(x: Any) -> Any:
    _, powers = _exponentials(x)
    return powers / np.float32(_sum(powers))


def _log_softmax(x: Any) -> Any:
    shifted, powers = _exponentials(x)
    return shifted - np.float32(np.log(_sum(powers)))


def _entropy(x: Any) -> Any:
    p = _softmax(x)
    return -_sum(np.where(p > 0, p * _log_softmax(x), np.float32(0)))


def _max(x: Any, *others: Any) -> Any:
    return np.maximum(x, others[0]) if others else _without_nan(x).max()


def _min(x: Any, *others: Any) -> Any:
    if others:
        return np.minimum(x, others[0])
    return (np.where(np.isnan(x), np.inf, x) if x.dtype == np.float32 else x).min()


def _int(x: Any) -> Any:
    if x.dtype != np.float32:
        return x
    return np.clip(np.where(np.isnan(x), np.float32(0), x), -GREATEST_INT, GREATEST_INT).astype(np.int64)


def _matmul(x: Any, a: Any) -> Any:
    return x.astype(np.float64) @ a.astype(np.float64)


def _floordiv(a: Any, b: Any) -> Any:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _mod(a: Any, b: Any) -> Any:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


def _gather(x: Any, index: Any) -> Any:
    inside = (index >= 0) & (index < len(x))
    return np.where(inside, x[np.where(inside, index, 0)], x.dtype.type(0))


def _shift(x: Any, places: int) -> Any:
    kept = max(len(x) - places, 0)
    before = np.full(len(x) - kept, -1 if x.dtype == np.int64 else 0, dtype=x.dtype)
    return np.concatenate([before, x[:kept]])


def _scatter(x: Any, index: Any, new: Any) -> Any:
    out = x.astype(np.result_type(x, new) if x.dtype != np.float32 else np.float32)
    places, values = np.broadcast_arrays(np.atleast_1d(index), new)
    for place, value in zip(places, values, strict=True):
        if 0 <= place < len(out):
            out[place] = value
    return out


def _scatter_max(x: Any, index: Any, new: Any) -> Any:
    out = x.astype(np.result_type(x, new) if x.dtype != np.float32 else np.float32)
    places, values = np.broadcast_arrays(np.atleast_1d(index), new)
    inside = (places >= 0) & (places < len(out))
    np.maximum.at(out, places[inside], values[inside].astype(out.dtype))
    return out


ALIKE: Mapping[str, tuple[Kind, Callable[..., Any]]] = {
    "add": (Kind.INT, np.add),
    "sub": (Kind.INT, np.subtract),
    "mul": (Kind.INT, np.multiply),
    "div": (Kind.FLOAT, np.divide),
    "floordiv": (Kind.INT, _floordiv),
    "mod": (Kind.INT, _mod),
    "pow": (Kind.FLOAT, np.power),
    "neg": (Kind.INT, np.negative),
    "lt": (Kind.BOOL, np.less),
    "le": (Kind.BOOL, np.less_equal),
    "gt": (Kind.BOOL, np.greater),
    "ge": (Kind.BOOL, np.greater_equal),
    "eq": (Kind.BOOL, np.equal),
    "ne": (Kind.BOOL, np.not_equal),
    "and": (Kind.BOOL, np.bitwise_and),
    "or": (Kind.BOOL, np.bitwise_or),
    "xor": (Kind.BOOL, np.bitwise_xor),
    "not": (Kind.BOOL, np.logical_not),
    "exp": (Kind.FLOAT, np.exp),
    "log": (Kind.FLOAT, np.log),
    "sqrt": (Kind.FLOAT, np.sqrt),
    "abs": (Kind.INT, np.abs),
    "floor": (Kind.FLOAT, np.floor),
    "clamp": (Kind.INT, lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "max": (Kind.BOOL, _max),
    "min": (Kind.BOOL, _min),
}
"""Operations on operands brought to their common kind, at least the one named; value by value but for max and min."""

_OTHERS: Mapping[str, Callable[..., Any]] = {
    "where": np.where,
    "matmul": _matmul,
    "float": lambda x: x.astype(np.float32),
    "int": _int,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "entropy": _entropy,
    "sum": _sum,
    "argmax": lambda x: np.argmax(_without_nan(x)),
    "sort": lambda x: _without_nan(x)[_order(x)],
    "rank": _rank,
    "cumsum": _cumsum,
    "gather": _gather,
    "scatter": _scatter,
    "scatter_max": _scatter_max,
    "zeros": lambda x: np.zeros(len(x)),
}
