"""Operations of a program that go together in one native pass over the vocabulary, instead of one pass each.

What works element by element on numbers and truth values is joined with what it needs and what needs it, as far as
nothing between them needs a whole row, like a sum. Results have the bits that the torch form gives.

Letters: B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.native.passes import OPERATIONS, NativePasses
from engine.programs.graph import Graph, Node
from engine.programs.torch_draws import Draws
from engine.programs.types import VOCAB, Kind, Type, common_kind

MOST_STEPS = 16
"""Of one pass: with three operands each they fit into its registers."""

_LOGIC = {"and", "or", "xor", "not"}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_ARITHMETIC = {"add", "sub", "mul", "div", "neg", "abs", "sqrt"}


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one pass computes.

    Attributes:
        nodes: In the order of the graph.
        args: Nodes outside that they are made of.
        outputs: Those of them that are needed outside.
    """

    nodes: tuple[int, ...]
    args: tuple[int, ...]
    outputs: tuple[int, ...]


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


def arrange(graph: Graph, needed: Sequence[int], outputs: Sequence[int]) -> list[int | Group]:
    """The order in which nodes are computed, those that gain from it together.

    Args:
        graph: The program.
        needed: Nodes to compute, in the order of the graph.
        outputs: Those whose values are kept.
    """
    # A fused node has the depth of what it needs; what needs it and is not fused lies one deeper. So nothing between
    # two fused nodes of one depth is computed otherwise.
    fused = {at for at in needed if can_fuse(graph, graph.nodes[at])}
    depths: dict[int, int] = {}
    for at in needed:
        args = graph.nodes[at].args
        depths[at] = max((depths[arg] + (arg in fused and at not in fused) for arg in args), default=0)
    used_by: dict[int, list[int]] = {at: [] for at in needed}
    for at in needed:
        for arg in graph.nodes[at].args:
            used_by[arg].append(at)
    order: list[int | Group] = []
    for depth in range(max(depths.values(), default=-1) + 1):
        order += [at for at in needed if depths[at] == depth and at not in fused]
        together = [at for at in needed if depths[at] == depth and at in fused]
        for start in range(0, len(together), MOST_STEPS):
            order += _joined(graph, together[start : start + MOST_STEPS], used_by, set(outputs))
    return order


def _joined(
    graph: Graph, nodes: Sequence[int], used_by: Mapping[int, Sequence[int]], kept: set[int]
) -> Sequence[int | Group]:
    draws = any(graph.nodes[at].op in ("uniform", "hash_uniform") for at in nodes)
    if len(nodes) == 1 and not draws:
        return nodes  # torch needs one pass too
    inside = set(nodes)
    args = dict.fromkeys(arg for at in nodes for arg in _operands(graph.nodes[at]) if arg not in inside)
    outputs = tuple(at for at in nodes if at in kept or any(user not in inside for user in used_by[at]))
    return [Group(tuple(nodes), tuple(args), outputs)]


class FusedPass:
    """A group made ready.

    Args:
        graph: The program.
        group: The nodes.
        native: Computes them.
        draws: Makes the keys of random numbers.
    """

    def __init__(self, graph: Graph, group: Group, native: NativePasses, draws: Draws) -> None:
        self._native = native
        self._draws = draws
        nodes = graph.nodes
        keyed = [at for at in group.nodes if nodes[at].op in ("uniform", "hash_uniform")]
        values = [arg for arg in group.args if any(arg in nodes[at].args for at in group.nodes if at not in keyed)]
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

    def run(self, args: Sequence[torch.Tensor], width: int, room: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Values of the outputs: [B, V] each, from values of the group's args: [B, 1] or [B, V], B or 1 requests.

        Args:
            args: The values.
            width: V.
            room: Where to write the last output if it is the group's last node, [B, V] float32; may be one of `args`.
        """
        size = max((len(arg) for arg in args), default=1)
        scalars = torch.empty((size, len(self._scalars)), dtype=torch.float32)
        for place, at in enumerate(self._scalars):
            scalars[:, place : place + 1] = args[at]
        keys = torch.empty((size, len(self._keys), 2), dtype=torch.int32)
        for place, (node, at) in enumerate(self._keys):
            keys[:, place] = self._key(node, args[at])
        fresh = self._outputs if room is None else self._outputs[:-1]
        outputs = [torch.empty((size, width), dtype=dtype) for _, dtype in fresh]
        if room is not None:
            outputs.append(room)
        self._native.run(
            self._steps,
            [args[at].contiguous().numpy() for at in self._vectors],
            scalars.numpy(),
            keys.numpy(),
            [(step, out.numpy()) for (step, _), out in zip(self._outputs, outputs, strict=True)],
        )
        return outputs

    def _key(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        if node.op == "hash_uniform":
            return self._draws.named(value.squeeze(1))
        return self._draws.numbered(value.squeeze(1), int(node.attributes[0]))


def _fits(one: Type) -> bool:
    """A vector of numbers or truth values, or a single value, which becomes a number."""
    return one.axis is None or (one.axis == VOCAB and one.kind in (Kind.BOOL, Kind.FLOAT))


def _operands(node: Node) -> tuple[int, ...]:
    return node.args[:1] if node.op in ("uniform", "hash_uniform") else node.args


def _dtype(one: Type) -> torch.dtype:
    return torch.bool if one.kind == Kind.BOOL else torch.float32


def _step(node: Node, operands: Sequence[int]) -> list[int]:
    name = "uniform" if node.op == "hash_uniform" else node.op
    operands = [*operands, *[operands[-1]] * (3 - len(operands))]
    return [OPERATIONS.index(name), *operands]
