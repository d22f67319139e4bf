"""Operations of a program that go together in one pass over the vocabulary, instead of one pass each.

What works element by element on numbers and truth values is joined with what it needs and what needs it, as far as
nothing between them needs a whole row, like a sum. Results have the bits that the torch form gives. On a CPU passes are
native; elsewhere whoever has some hands them in, see `Passes`. A native pass that makes the scores of the program's
draw draws from them too, while they are in the cache; often nobody else needs them, and they are written nowhere.

Letters: B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from engine.native.passes import OPERATIONS, NativePasses
from engine.programs.graph import Graph, Node
from engine.programs.types import VOCAB, Kind, Type, common_kind

MOST_STEPS = 16
"""Of one native pass: with three operands each they fit into its registers."""

_LOGIC = {"and", "or", "xor", "not"}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_ARITHMETIC = {"add", "sub", "mul", "div", "neg", "abs", "sqrt"}


class NotDrawn(Exception):
    """Scores are such that a draw must put them right before."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one pass computes.

    Attributes:
        nodes: In the order of the graph.
        args: Nodes outside that they are made of.
        outputs: Those of them that are needed outside.
        draw: The node of a draw from one of them, made in the same pass; the last of `args` is its key.
    """

    nodes: tuple[int, ...]
    args: tuple[int, ...]
    outputs: tuple[int, ...]
    draw: int | None = None


class Pass(Protocol):
    """A group made ready."""

    def run(self, args: Sequence[torch.Tensor], width: int, room: torch.Tensor | None = None) -> Sequence[torch.Tensor]:
        """Values of the outputs, each [B, V] or for single values [B, 1]; of a group with a draw also its tokens, last.

        Args:
            args: Values of the group's args: [B, 1] or [B, V], B or 1 requests.
            width: V.
            room: Where to write the last output if it is the group's last node, [B, V] float32; may be one of `args`.
        """
        ...


class Passes(Protocol):
    """Makes groups ready.

    Attributes:
        most_nodes: Of a group.
    """

    @property
    def most_nodes(self) -> int: ...

    def can_fuse(self, graph: Graph, node: Node) -> bool:
        """Whether a pass can compute a node, element by element: of single values, or over the vocabulary."""
        ...

    def make(self, graph: Graph, group: Group) -> Pass:
        """A group made ready."""
        ...


def can_fuse(graph: Graph, node: Node) -> bool:
    """Whether a native pass can compute a node."""
    if node.type.axis != VOCAB:
        return False
    args = [graph.nodes[arg] for arg in node.args]
    types = [arg.type for arg in args]
    if node.op == "hash_uniform":
        return args[1].op == "vocab" and types[0].axis is None
    if node.op == "uniform":
        return True
    if not all(_fits(one) for one in types):
        return False
    if node.op == "where":
        return node.type.kind != Kind.INT
    if node.op in _ARITHMETIC:
        return node.type.kind == Kind.FLOAT
    if node.op in _COMPARISONS:
        return common_kind(*types) != Kind.INT
    return node.op in _LOGIC and node.type.kind == Kind.BOOL and all(one.kind == Kind.BOOL for one in types)


def arrange(
    graph: Graph, needed: Sequence[int], outputs: Sequence[int], draw: int | None = None, passes: Passes | None = None
) -> list[int | Group]:
    """The order in which nodes are computed, those that gain from it together.

    Args:
        graph: The program.
        needed: Nodes to compute, in the order of the graph.
        outputs: Those whose values are kept.
        draw: A `gumbel_argmax` over the vocabulary that no other node needs, to be drawn in the pass that makes its
            scores, if a pass does.
        passes: What computes groups; None for native ones.
    """
    is_fused = can_fuse if passes is None else passes.can_fuse
    most_nodes = MOST_STEPS if passes is None else passes.most_nodes
    # A fused node has the depth of what it needs; what needs it and is not fused lies one deeper. So nothing between
    # two fused nodes of one depth is computed otherwise.
    fused = {at for at in needed if is_fused(graph, graph.nodes[at])}
    depths: dict[int, int] = {}
    for at in needed:
        args = graph.nodes[at].args
        depths[at] = max((depths[arg] + (arg in fused and at not in fused) for arg in args), default=0)
    used_by: dict[int, list[int]] = {at: [] for at in needed}
    for at in needed:
        for arg in graph.nodes[at].args:
            used_by[arg].append(at)
    if draw is not None:
        scores, key = graph.nodes[draw].args
        if scores not in fused or depths[key] > depths[scores]:
            draw = None
    order: list[int | Group] = []
    for depth in range(max(depths.values(), default=-1) + 1):
        order += [at for at in needed if depths[at] == depth and at not in fused and at != draw]
        together = [at for at in needed if depths[at] == depth and at in fused]
        together.sort(key=lambda at: graph.nodes[at].type.axis is not None)  # no single value needs one that is not
        for start in range(0, len(together), most_nodes):
            order += _joined(graph, together[start : start + most_nodes], used_by, set(outputs), draw)
    return order


def _joined(
    graph: Graph, nodes: Sequence[int], used_by: Mapping[int, Sequence[int]], kept: set[int], draw: int | None
) -> Sequence[int | Group]:
    if draw is not None and graph.nodes[draw].args[0] not in nodes:
        draw = None
    is_keyed = any(graph.nodes[at].op in ("uniform", "hash_uniform") for at in nodes)
    if len(nodes) == 1 and not is_keyed and draw is None:
        return nodes  # torch needs one pass too
    inside = {*nodes, *(() if draw is None else (draw,))}
    args = dict.fromkeys(arg for at in nodes for arg in operands(graph, graph.nodes[at]) if arg not in inside)
    outputs = tuple(at for at in nodes if at in kept or any(user not in inside for user in used_by[at]))
    key = () if draw is None else graph.nodes[draw].args[1:]
    return [Group(tuple(nodes), (*args, *key), outputs, draw)]


class NativeFusion:
    """Native passes.

    Args:
        native: Computes them.
    """

    most_nodes = MOST_STEPS

    def __init__(self, native: NativePasses) -> None:
        self._native = native

    def can_fuse(self, graph: Graph, node: Node) -> bool:
        """See `Passes`."""
        return can_fuse(graph, node)

    def make(self, graph: Graph, group: Group) -> FusedPass:
        """See `Passes`."""
        return FusedPass(graph, group, self._native)


class FusedPass:
    """A group made ready as a native pass.

    Args:
        graph: The program.
        group: The nodes.
        native: Computes them.
    """

    def __init__(self, graph: Graph, group: Group, native: NativePasses) -> None:
        self._native = native
        nodes = graph.nodes
        keyed = [at for at in group.nodes if nodes[at].op in ("uniform", "hash_uniform")]
        values = list(dict.fromkeys(arg for at in group.nodes if at not in keyed for arg in nodes[at].args))
        values = [arg for arg in values if arg in group.args]
        self._vectors = [group.args.index(arg) for arg in values if nodes[arg].type.axis == VOCAB]
        self._scalars = [group.args.index(arg) for arg in values if nodes[arg].type.axis is None]
        self._keys = [(nodes[at], group.args.index(nodes[at].args[0])) for at in keyed]
        inputs = [group.args[at] for at in (*self._vectors, *self._scalars)]
        registers = {at: number for number, at in enumerate((*inputs, *group.nodes))}
        self._steps = np.array(
            [
                _step(nodes[at], [keyed.index(at)] if at in keyed else [registers[arg] for arg in nodes[at].args])
                for at in group.nodes
            ],
            dtype=np.int32,
        )
        self._outputs = [(group.nodes.index(at), _dtype(nodes[at].type)) for at in group.outputs]
        self._scores: tuple[int, int] | None = None
        if group.draw is not None:
            self._scores = group.nodes.index(nodes[group.draw].args[0]), len(self._keys)
            self._keys.append((nodes[group.draw], len(group.args) - 1))
        self._numbers = np.array([_number(node) for node, _ in self._keys], dtype=np.int64)

    def run(self, args: Sequence[torch.Tensor], width: int, room: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Values of the outputs: [B, V] each, from values of the group's args: [B, 1] or [B, V], B or 1 requests.

        A group with a draw also gives its tokens, last: [B, 1] int64.

        Args:
            args: The values.
            width: V.
            room: Where to write the last output if it is the group's last node, [B, V] float32; may be one of `args`.

        Raises:
            NotDrawn: A score to draw from is +inf.
        """
        # Small numbers are laid out by numpy: torch takes longer, and would let another thread have the interpreter.
        size = max([arg.shape[0] for arg in args], default=1)
        if size > 1:
            self._native.rouse()
        scalars = np.empty((size, len(self._scalars)), np.float32)
        for place, at in enumerate(self._scalars):
            scalars[:, place] = args[at].numpy()[:, 0]
        keys = np.empty((size, len(self._keys)), np.int64)
        for place, (_, at) in enumerate(self._keys):
            keys[:, place] = args[at].numpy()[:, 0]
        fresh = self._outputs if room is None else self._outputs[:-1]
        outputs = [torch.empty((size, width), dtype=dtype) for _, dtype in fresh]
        if room is not None:
            outputs.append(room)
        vectors = [args[at].contiguous().numpy() for at in self._vectors]
        places = [(step, out.numpy()) for (step, _), out in zip(self._outputs, outputs, strict=True)]
        if self._scores is None:
            self._native.run(self._steps, vectors, scalars, keys, self._numbers, places)
            return outputs
        token_ids = self._native.draw(self._steps, vectors, scalars, keys, self._numbers, places, self._scores)
        if token_ids is None:
            raise NotDrawn
        return [*outputs, torch.from_numpy(token_ids)[:, None]]


def _fits(one: Type) -> bool:
    """A vector of numbers or truth values, or a single value, which becomes a number."""
    return one.axis is None or (one.axis == VOCAB and one.kind in (Kind.BOOL, Kind.FLOAT))


def operands(graph: Graph, node: Node) -> tuple[int, ...]:
    """What a fused node is computed from: of others it has the shape alone, or they are all token ids."""
    if node.op == "zeros":
        return ()
    if node.op == "uniform" or (node.op == "hash_uniform" and graph.nodes[node.args[1]].op == "vocab"):
        return node.args[:1]
    return node.args


def _number(node: Node) -> int:
    """How the key of a draw is made: like `Draws.named` and `Draws.numbered` do it."""
    return 0 if node.op == "hash_uniform" else int(node.attributes[0]) - 1


def _dtype(one: Type) -> torch.dtype:
    return torch.bool if one.kind == Kind.BOOL else torch.float32


def _step(node: Node, operands: Sequence[int]) -> list[int]:
    name = "uniform" if node.op == "hash_uniform" else node.op
    operands = [*operands, *[operands[-1]] * (3 - len(operands))]
    return [OPERATIONS.index(name), *operands]
