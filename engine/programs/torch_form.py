"""Device programs in torch: one step of many requests at once, on any device, without waiting for it.

Letters: B requests, V vocabulary, T longest history, K a length fixed in the source. Every value has two dimensions,
[B, 1], [B, V], [B, T] or [B, K]; the first is 1 for what all requests share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import torch

from engine.native.passes import find_native_passes
from engine.programs import torch_operations as operations
from engine.programs.fused import Group, NativeFusion, NotDrawn, Passes, arrange
from engine.programs.graph import Graph, Node
from engine.programs.torch_draws import Draws
from engine.programs.types import HISTORY, VOCAB, Kind, Type, common_kind
from engine.sampling.random import position_keys

_FIXED = ("constant", "vocab", "vocab_size")
"""What makes values that are the same in every step."""

DTYPES: Mapping[Kind, torch.dtype] = {Kind.BOOL: torch.bool, Kind.INT: torch.int64, Kind.FLOAT: torch.float32}


class BatchValues(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the step knows about B requests that run the same program; only what the program reads need be there.

    Attributes:
        lanes: [B, V] float32 for each lane; an ordinary program's `logits` are the first.
        keys: [B] int64, random keys of the positions.
        steps: [B] int64, output tokens before this one.
        history: [B, T] int64, prompt and output, -1 beyond each request's own.
        lengths: [B] int64, of the histories.
        newest: [B, K] int64, the newest tokens of each, the newest one last, -1 before its first; can stand for both
            where nothing else is read of them.
        counts: [B, V] int64, how often each token is in the output.
        parameters: [B, 1] or [B, V] by name; a matrix is [K, R] and the same for all.
        state: [B, 1] or [B, V] by name.
        others: [B, 1] or [B, V], what only some functions read, by name.
        room: [B, V] float32, contiguous: where scores may be written that are left to the caller. Can be a lane, if
            nobody needs that afterwards.
    """

    lanes: Sequence[torch.Tensor]
    keys: torch.Tensor | None = None
    steps: torch.Tensor | None = None
    history: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    newest: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    parameters: Mapping[str, torch.Tensor] = {}
    state: Mapping[str, torch.Tensor] = {}
    others: Mapping[str, torch.Tensor] = {}
    room: torch.Tensor | None = None


class BatchResult(msgspec.Struct, frozen=True, eq=False):
    """What a program made of it.

    Attributes:
        tokens: [B] int64, as returned: possibly outside of the vocabulary. None where `scores` say what to draw.
        scores: [B, V] float32: the tokens are draws from softmax(scores) with the keys of the positions.
        state: As in `BatchValues`.
        probes: [B, 1], [B, V] or [B, K] by name.
        is_drawn: The tokens are of the vocabulary for certain.
    """

    tokens: torch.Tensor | None
    scores: torch.Tensor | None
    state: dict[str, torch.Tensor]
    probes: dict[str, torch.Tensor]
    is_drawn: bool = False


_Compute = Callable[[BatchValues, Sequence[torch.Tensor]], torch.Tensor]
_ComputeAll = Callable[[BatchValues, Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class _Instruction(NamedTuple):
    """Nodes: how to compute them, of which others, and which of all those nobody needs afterwards."""

    made: tuple[int, ...]
    compute: _ComputeAll
    args: tuple[int, ...]
    spent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Nodes that are always the same, and how to compute others."""

    fixed: Mapping[int, torch.Tensor]
    instructions: Sequence[_Instruction]

    def evaluate(self, values: BatchValues) -> dict[int, torch.Tensor]:
        found = dict(self.fixed)
        for made, compute, args, spent in self.instructions:
            found.update(zip(made, compute(values, [found[arg] for arg in args]), strict=True))
            for at in spent:
                del found[at]
        return found


class TorchProgram:
    """A graph made ready for a vocabulary and a device. Not for several threads at once.

    Args:
        graph: The program.
        vocab_size: V.
        device: Where everything lies.
        team: Threads for native passes, see `engine.native.passes`.
        native: Compute in native passes what they can, where the device has them.
        joins_draw: Draw in the native pass that makes the scores of the program's last draw, where one does.
        passes: What computes groups instead of native passes.

    Attributes:
        can_defer: The program ends with the draw of a plain sampler, on which nothing else depends: whoever has a
            quicker way to draw can do that himself.
    """

    def __init__(
        self,
        graph: Graph,
        vocab_size: int,
        device: torch.device,
        *,
        team: object | None = None,
        native: bool = True,
        joins_draw: bool = True,
        passes: Passes | None = None,
    ) -> None:
        self._graph = graph
        self._device = device
        self._vocab = torch.arange(vocab_size, dtype=torch.int64, device=device)[None]
        self._draws = Draws(vocab_size, device)
        has_native = native and passes is None and device.type == "cpu"
        self._native = find_native_passes(self._draws.hashes.numpy(), team) if has_native else None
        self._passes = passes if self._native is None else NativeFusion(self._native)
        others = (*graph.updates.values(), *graph.probes.values())
        self._plan = self._ready((graph.token, *others))
        token = graph.nodes[graph.token]
        ends_with_draw = token.op == "gumbel_argmax" and self._is_last(token, others)
        self.can_defer = ends_with_draw and token.attributes == (0,)
        self._deferred_plan = self._ready((token.args[0], *others), token.args[0]) if self.can_defer else self._plan
        self._joint_plan = self._joint(others) if ends_with_draw and joins_draw else None
        self._first_plan = self._ready(tuple(node for _, node in graph.states.values()))

    def first_state(self, parameters: Mapping[str, torch.Tensor], num_requests: int) -> dict[str, torch.Tensor]:
        """State before the first step: [B, 1] or [B, V] by name."""
        found = self._first_plan.evaluate(BatchValues(lanes=(), parameters=parameters))
        states = self._graph.states.items()
        return {name: self._shaped(found[node], kind, num_requests) for name, (kind, node) in states}

    def run(self, values: BatchValues, *, defer: bool = False) -> BatchResult:
        """One step of all requests.

        Args:
            values: What the step knows of them.
            defer: Leave the last draw to the caller, where that can be and is not quicker done with all else.
        """
        size = values.lanes[0].shape[0]
        if self._joint_plan is not None:
            try:
                return self._result(self._joint_plan.evaluate(values), size, is_drawn=True)
            except NotDrawn:
                pass  # nothing has been written
        defer = defer and self.can_defer
        plan = self._deferred_plan if defer else self._plan
        return self._result(plan.evaluate(values), size, defer=defer)

    def position_keys(self, stream_keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Random keys of positions [B] int64 in streams [B] int64: [B] int64."""
        if self._native is not None:
            return torch.from_numpy(self._native.position_keys(stream_keys.numpy(), positions.numpy()))
        return position_keys(stream_keys, positions).contiguous().view(torch.int64).view(-1)

    def _result(
        self, found: Mapping[int, torch.Tensor], size: int, *, defer: bool = False, is_drawn: bool = False
    ) -> BatchResult:
        graph = self._graph
        scores = found[graph.nodes[graph.token].args[0]].float().expand(size, -1) if defer else None
        return BatchResult(
            tokens=None if defer else found[graph.token].expand(size, 1).squeeze(1),
            scores=scores,
            state={name: self._shaped(found[at], graph.states[name][0], size) for name, at in graph.updates.items()},
            probes={name: found[at].expand(size, -1) for name, at in graph.probes.items()},
            is_drawn=is_drawn,
        )

    def value(self, values: BatchValues) -> torch.Tensor:
        """What a function without state returns: [B or 1, any]."""
        return self._plan.evaluate(values)[self._graph.token]

    def _is_last(self, token: Node, others: Sequence[int]) -> bool:
        """Whether nothing but the answer needs the token, and it is drawn over the vocabulary."""
        is_free = self._graph.token not in self._needed(others)
        return is_free and self._graph.nodes[token.args[0]].type.axis == VOCAB

    def _shaped(self, value: torch.Tensor, kind: Type, num_requests: int) -> torch.Tensor:
        width = 1 if kind.axis is None else self._vocab.shape[1]
        return value.expand(num_requests, width)

    def _joint(self, others: Sequence[int]) -> _Plan | None:
        """How to compute the token in the pass that makes its scores, and others; None if no pass makes them."""
        if self._native is None:
            return None
        outputs = (self._graph.token, *others)
        order = arrange(self._graph, self._needed(outputs), outputs, self._graph.token, self._passes)
        is_joint = any(isinstance(one, Group) and one.draw is not None for one in order)
        return self._planned(order, outputs) if is_joint else None

    def _ready(self, outputs: Sequence[int], scores: int | None = None) -> _Plan:
        """What to compute for outputs; `scores` is the one that may be written over what it is made of."""
        needed = self._needed(outputs)
        order = needed if self._passes is None else arrange(self._graph, needed, outputs, passes=self._passes)
        return self._planned(order, outputs, scores)

    def _needed(self, outputs: Sequence[int]) -> list[int]:
        """What outputs are made of, in the order of the graph."""
        needed: set[int] = set()
        todo = list(outputs)
        while todo:
            at = todo.pop()
            if at not in needed:
                needed.add(at)
                todo += self._graph.nodes[at].args
        return sorted(needed)

    def _planned(self, order: Sequence[int | Group], outputs: Sequence[int], scores: int | None = None) -> _Plan:
        nodes = self._graph.nodes
        fixed = {at: self._fixed(nodes[at]) for at in order if isinstance(at, int) and nodes[at].op in _FIXED}
        parts = [self._part(one) for one in order if one not in fixed]
        if order and isinstance(order[-1], Group) and order[-1].nodes[-1] == scores:
            parts[-1] = self._part(order[-1], is_last=True)
        last_use = {at: place for place, (made, _, args) in enumerate(parts) for at in (*made, *args)}
        kept = {*outputs, *fixed}
        return _Plan(
            fixed,
            [
                _Instruction(
                    made, compute, args, tuple(at for at in {*made, *args} if last_use[at] == place and at not in kept)
                )
                for place, (made, compute, args) in enumerate(parts)
            ],
        )

    def _part(self, one: int | Group, *, is_last: bool = False) -> tuple[tuple[int, ...], _ComputeAll, tuple[int, ...]]:
        """What is made, how, and of what."""
        if isinstance(one, Group):
            assert self._passes is not None
            fused = self._passes.make(self._graph, one)
            width = self._vocab.shape[1]
            made = one.outputs if one.draw is None else (*one.outputs, one.draw)
            if is_last:
                return made, lambda values, args: fused.run(args, width, _room(values, args)), one.args
            return made, lambda _, args: fused.run(args, width), one.args
        node = self._graph.nodes[one]
        form = self._form(node)
        return (one,), lambda values, args: (form(values, args),), node.args

    def _form(self, node: Node) -> _Compute:
        """How a node is computed; what can be decided before the step is decided here."""
        op, attributes = node.op, node.attributes
        if op in ("parameter", "state", "input", "lane"):
            return _given(op, attributes[0])
        if op in ("uniform", "gumbel", "gumbel_argmax", "categorical"):
            return self._draw(node)
        if op == "hash_uniform":
            every_token = self._graph.nodes[node.args[1]].op == "vocab"
            return lambda _, args: self._draws.uniform(
                self._draws.named(args[0].squeeze(1)), None if every_token else args[1]
            )
        if op == "one_hot":
            return lambda _, args: self._vocab == args[0]
        if op == "recent":
            return lambda values, _: _recent(values, int(attributes[0]))
        if op == "shift":
            return lambda _, args: operations.shift(args[0], int(attributes[0]))
        if op == "top":
            return lambda _, args: operations.top(args[0], int(attributes[0]))
        return self._operation(node)

    def _fixed(self, node: Node) -> torch.Tensor:
        if node.op == "vocab":
            return self._vocab
        number = self._vocab.shape[1] if node.op == "vocab_size" else node.attributes[0]
        return torch.tensor([[number]], dtype=DTYPES[node.type.kind], device=self._device)

    def _draw(self, node: Node) -> _Compute:
        number = int(node.attributes[0])
        draws = self._draws

        def keys(key: torch.Tensor) -> torch.Tensor:
            return draws.numbered(key.squeeze(1), number)

        match node.op:
            case "uniform" if node.type.axis is None:
                return lambda _, args: draws.single(keys(args[0]))
            case "uniform" if node.type.axis == VOCAB:
                return lambda _, args: draws.uniform(keys(args[0]), None)
            case "uniform":
                index = torch.arange(int(str(node.type.axis)), device=self._device)[None]
                return lambda _, args: draws.uniform(keys(args[0]), index)
            case "gumbel":
                return lambda _, args: draws.gumbel(keys(args[0]))
            case "gumbel_argmax":
                return lambda _, args: draws.draw(args[0].float(), keys(args[1]))
            case _:
                return lambda _, args: draws.draw(args[0].float().log(), keys(args[1]))

    def _operation(self, node: Node) -> _Compute:
        op = node.op
        types = [self._graph.nodes[arg].type for arg in node.args]
        of_history = [one.axis == HISTORY for one in types]
        if op in operations.MASKED and len(node.args) == 1:
            reduce = operations.MASKED[op]
            if of_history[0]:
                return lambda values, args: reduce(args[0], _valid(values))
            return lambda _, args: reduce(args[0])
        if op == "where":
            dtype = DTYPES[node.type.kind]
            return lambda _, args: torch.where(args[0], args[1].to(dtype), args[2].to(dtype))
        if op in operations.ALIKE:
            kind, compute = operations.ALIKE[op]
            common = DTYPES[common_kind(*types, at_least=kind)]
            return lambda _, args: compute(*[arg.to(common) for arg in args])
        if op == "matmul":
            is_matrix = self._graph.nodes[node.args[1]].type.rows is not None
            return lambda _, args: operations.product(args[0], args[1], is_matrix=is_matrix)
        whole = operations.WHOLE[op]
        if op in ("scatter", "scatter_max"):
            dtype = DTYPES[node.type.kind]
            at_history = of_history[1]
            return lambda values, args: whole(
                args[0].to(dtype),
                torch.where(_valid(values), args[1], -1) if at_history else args[1],
                args[2].to(dtype),
            )
        return lambda _, args: whole(*args)


def _given(op: str, name: str | bool | float) -> _Compute:
    match op, name:
        case "parameter", str():
            return lambda values, _: values.parameters[name]
        case "state", str():
            return lambda values, _: values.state[name]
        case "lane", int():
            return lambda values, _: values.lanes[name]
        case _, "logits":
            return lambda values, _: values.lanes[0]
        case _, "prev":
            return lambda values, _: _recent(values, 1)
        case _, "key":
            return lambda values, _: _there(values.keys)[:, None]
        case _, "step":
            return lambda values, _: _there(values.steps)[:, None]
        case _, "history":
            return lambda values, _: _there(values.newest if values.history is None else values.history)
        case _, "places":
            return lambda values, _: _places(_there(values.history))
        case _, "counts":
            return lambda values, _: _there(values.counts)
    return lambda values, _: values.others[str(name)]


def _room(values: BatchValues, args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Where scores go, unless all requests share them."""
    room = values.room
    return room if room is not None and max([arg.shape[0] for arg in args], default=1) == room.shape[0] else None


def _there(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None, "the step does not know what the program reads"
    return value


def _recent(values: BatchValues, place: int) -> torch.Tensor:
    """The token at a place from the end of each history, -1 before its beginning: [B, 1]."""
    newest = values.newest
    if newest is not None and place <= newest.shape[1]:
        at = newest.shape[1] - place
        return newest[:, at : at + 1]
    return operations.gather(_there(values.history) + 1, (_there(values.lengths) - place)[:, None]) - 1


def _valid(values: BatchValues) -> torch.Tensor:
    """[B, T], which places belong to the histories."""
    return _places(_there(values.history)) < _there(values.lengths)[:, None]


def _places(history: torch.Tensor) -> torch.Tensor:
    """[1, T], where each token stands."""
    return torch.arange(history.shape[1], device=history.device)[None]
