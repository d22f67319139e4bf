"""Groups of a device program's nodes as one kernel each, with the bits of the torch form.

A kernel reads what the group is made of, computes all nodes in registers, and writes those that are needed elsewhere.
Single values are computed by every program of the kernel anew, which costs less than a launch.

Letters: B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton

from engine.cuda.program_source import kernel
from engine.programs.fused import Group, operands
from engine.programs.graph import Graph, Node
from engine.programs.types import VOCAB, Kind, Type, common_kind

MOST_NODES = 64
"""Of a group: what it keeps at a time has to fit into registers."""

_DTYPES = {Kind.BOOL: torch.bool, Kind.INT: torch.int64, Kind.FLOAT: torch.float32, Kind.KEY: torch.int64}
_NAMES = {Kind.BOOL: "tl.int1", Kind.INT: "tl.int64", Kind.FLOAT: "tl.float32"}

_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_NUMBERS = {*_SIGNS, "neg", "abs", "clamp", "floordiv", "mod"}
_FLOATS = {"div", "sqrt", "floor"}
_EXTREMES = {"max": ("maximum", "|"), "min": ("minimum", "&")}
_PLAIN = {*_NUMBERS, *_FLOATS, *_COMPARISONS, *_LOGIC, "not", "where", "float", "int", "one_hot"}


class KernelPasses:
    """Makes kernels of groups: an `engine.programs.fused.Passes`.

    Args:
        vocab_size: V.
        device: Where.
        pdl: Kernels may begin before those in front of them have ended.
    """

    most_nodes = MOST_NODES

    def __init__(self, vocab_size: int, device: torch.device, *, pdl: bool = False) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._pdl = pdl

    def can_fuse(self, graph: Graph, node: Node) -> bool:
        """Whether a kernel can compute a node to the bit: no exponentials or logarithms."""
        if not _fits(node.type):
            return False
        if node.op in ("uniform", "zeros"):
            return True
        is_known = node.op in _PLAIN or node.op == "hash_uniform" or (node.op in _EXTREMES and len(node.args) == 2)
        return is_known and all(_fits(graph.nodes[arg].type) for arg in node.args)

    def make(self, graph: Graph, group: Group) -> KernelPass:
        """See `Passes`."""
        return KernelPass(graph, group, self._vocab_size, self._device, pdl=self._pdl)


class KernelPass:
    """A group made ready.

    Args:
        graph: The program.
        group: The nodes; it draws nothing.
        vocab_size: V.
        device: Where.
        pdl: It may begin before what is in front of it has ended.
    """

    def __init__(self, graph: Graph, group: Group, vocab_size: int, device: torch.device, *, pdl: bool = False) -> None:
        nodes = graph.nodes
        assert group.draw is None
        self._vocab_size = vocab_size
        self._device = device
        self._args = [(at, nodes[arg].type) for at, arg in enumerate(group.args) if nodes[arg].op != "vocab"]
        self._outputs = [nodes[at].type for at in group.outputs]
        over_vocab = any(nodes[at].type.axis == VOCAB for at in group.nodes)
        block = 1024 if vocab_size > 65536 else 512
        self._block = min(block, triton.next_power_of_2(vocab_size)) if over_vocab else 1
        self._num_chunks = triton.cdiv(vocab_size, self._block) if over_vocab else 1
        self._num_warps = max(1, min(4, self._block // 128))
        self._pdl: dict[str, bool] = {"PDL": pdl, "launch_pdl": pdl}
        self._kernel = _kernel_of(graph, group, over_vocab=over_vocab)

    def run(self, args: Sequence[torch.Tensor], width: int, room: torch.Tensor | None = None) -> list[torch.Tensor]:
        """See `engine.programs.fused.Pass`; waits for nothing."""
        size = max([arg.shape[0] for arg in args], default=1)
        given: list[torch.Tensor | int] = []
        for at, kind in self._args:
            value = args[at]
            if kind.axis == VOCAB:
                given += [value.contiguous(), int(value.shape[0] > 1)]
            else:
                given += [value, value.stride(0) if value.shape[0] > 1 else 0]
        fresh = self._outputs if room is None else self._outputs[:-1]
        outputs = [
            torch.empty((size, width if kind.axis == VOCAB else 1), dtype=_DTYPES[kind.kind], device=self._device)
            for kind in fresh
        ]
        if room is not None:
            outputs.append(room)
        self._kernel[self._num_chunks, size](
            *given,
            *outputs,
            V=self._vocab_size,
            BLOCK=self._block,
            num_warps=self._num_warps,
            **self._pdl,
            enable_fp_fusion=False,  # products and sums are rounded each, as torch does it
        )
        return outputs


def _fits(one: Type) -> bool:
    return one.axis in (None, VOCAB) and one.rows is None and (one.kind != Kind.KEY)


def _kernel_of(graph: Graph, group: Group, *, over_vocab: bool) -> Any:
    """What computes a group: numbers of nodes do not come into its source, so that like groups share it."""
    nodes = graph.nodes
    parameters, changing, names = [], [], {}
    lines = ["row = tl.program_id(1).to(tl.int64)"]
    if over_vocab:
        lines += ["ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "inside = ids < V"]
    for place, arg in enumerate(group.args):
        if nodes[arg].op == "vocab":
            names[arg] = "ids.to(tl.int64)"
            continue
        names[arg] = f"x{place}"
        parameters += [f"in{place}", f"step{place}"]
        changing.append(f"step{place}")
        if nodes[arg].type.axis == VOCAB:
            lines.append(f"x{place} = tl.load(in{place} + row * step{place} * V + ids, mask=inside, other=0)")
        else:
            lines.append(f"x{place} = tl.load(in{place} + row * step{place})")
    for place, at in enumerate(group.nodes):
        names[at] = f"y{place}"
        lines.append(f"y{place} = {_expression(graph, nodes[at], names)}")
    single = []
    for place, at in enumerate(group.outputs):
        parameters.append(f"out{place}")
        if nodes[at].type.axis == VOCAB:
            lines.append(f"tl.store(out{place} + row * V + ids, {names[at]}, mask=inside)")
        else:
            single.append(f"    tl.store(out{place} + row, {names[at]})")
    if single:
        lines += ["if tl.program_id(0) == 0:", *single]
    return kernel("pass", parameters, ["V", "BLOCK"], lines, changing=changing)


def _expression(graph: Graph, node: Node, names: Mapping[int, str]) -> str:
    """A node in Triton's language, on operands brought to the kind that it computes in."""
    op, types = node.op, [graph.nodes[arg].type for arg in node.args]
    used = operands(graph, node)
    if op in ("uniform", "hash_uniform"):
        ids = "ids" if node.type.axis == VOCAB else "tl.full((), 0, tl.int32)"
        if op == "uniform":
            return f"keyed_uniform({ids}, {names[used[0]]}, {int(node.attributes[0])})"
        return f"hashed_uniform({names[used[1]] if len(used) > 1 else ids}, {names[used[0]]})"
    if op == "zeros":
        return "tl.zeros([BLOCK], tl.float32)" if node.type.axis == VOCAB else "tl.full((), 0.0, tl.float32)"
    if op == "one_hot":
        return f"ids.to(tl.int64) == {names[node.args[0]]}"
    if op == "where":
        condition, yes, no = (names[arg] for arg in node.args)
        chosen = [_brought(name, one.kind, node.type.kind) for name, one in zip((yes, no), types[1:], strict=True)]
        return f"tl.where({condition}, {', '.join(chosen)})"
    if op in ("float", "int"):
        return _brought(names[node.args[0]], types[0].kind, Kind.FLOAT if op == "float" else Kind.INT)
    least = Kind.FLOAT if op in _FLOATS else Kind.INT if op in _NUMBERS else Kind.BOOL
    kind = common_kind(*types, at_least=least)
    values = [_brought(names[arg], one.kind, kind) for arg, one in zip(node.args, types, strict=True)]
    return _plain(op, kind, values)


def _plain(op: str, kind: Kind, values: Sequence[str]) -> str:
    """An operation on operands of one kind."""
    if op in _SIGNS:
        return f"{values[0]} {_SIGNS[op]} {values[1]}"
    if op in _COMPARISONS:
        if kind is Kind.BOOL:
            values = [f"{value}.to(tl.int32)" for value in values]
        return f"{values[0]} {_COMPARISONS[op]} {values[1]}"
    if op in _LOGIC:
        return f"{values[0]} {_LOGIC[op]} {values[1]}"
    if op in _EXTREMES:
        function, sign = _EXTREMES[op]
        if kind is Kind.BOOL:
            return f"{values[0]} {sign} {values[1]}"
        return f"{_extreme(function, kind)}({values[0]}, {values[1]})"
    if op == "clamp":
        inner = f"{_extreme('maximum', kind)}({values[0]}, {values[1]})"
        return f"{_extreme('minimum', kind)}({inner}, {values[2]})"
    form = {
        "not": "{0} == 0",
        "neg": "negative({0})" if kind is Kind.FLOAT else "0 - {0}",
        "abs": "tl.abs({0})",
        "sqrt": "tl.sqrt_rn({0})",
        "div": "tl.div_rn({0}, {1})",
        "floor": "floor({0})",
        "floordiv": "floor_divide({0}, {1})",
        "mod": "modulo({0}, {1})",
    }[op]
    return form.format(*values)


def _extreme(function: str, kind: Kind) -> str:
    return function if kind is Kind.FLOAT else f"tl.{function}"


def _brought(value: str, kind: Kind, wanted: Kind) -> str:
    """A value in another kind."""
    if kind is wanted:
        return value
    return f"to_int({value})" if kind is Kind.FLOAT else f"{value}.to({_NAMES[wanted]})"
