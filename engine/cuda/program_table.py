"""What device programs of running sequences know, by row of device state, where a recorded step reads and writes it.

A row holds what a session holds otherwise (`engine.programs.session`): parameters, the state after the last two tokens
and, for programs that look back, the newest tokens or all of them.

Letters: R rows of device state, V vocabulary, K tokens that a program looks back at, T tokens of the longest history.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.programs.binding import BoundProgram
from engine.programs.graph import Graph
from engine.programs.torch_form import DTYPES, TorchProgram
from engine.programs.types import Type

MOST_RECENT = 64
"""Tokens back from the newest up to which a program counts as one that looks at some: of others all tokens are kept."""

MOST_HISTORY = 8192
"""Tokens of all of a history that a recorded step can read."""

MOST_TABLE_BYTES = 256 * 2**20
"""Memory for what the sequences of one program carry."""

_OF_TOKENS = frozenset({"history", "places", "counts"})
STATES = 2
"""States a row: after an even and after an odd position. A step may be computed again, from the state before."""


def tokens_seen(graph: Graph) -> int | None:
    """Newest tokens of the history that a program reads, at most; None if it reads all, or many."""
    seen = 1 if graph.inputs & (_OF_TOKENS | {"prev"}) else 0
    for node in graph.nodes:
        if node.op == "recent":
            seen = max(seen, int(node.attributes[0]))
        elif any(_is_all_tokens(graph, arg) for arg in node.args):
            return None
    return seen if seen <= MOST_RECENT else None


def table_bytes(bound: BoundProgram, num_rows: int, vocab_size: int, max_context: int) -> int:
    """Memory that a table takes; see `ProgramTable`."""
    kinds = [(kind, 1) for _, kind in bound.types] + [(kind, STATES) for kind, _ in bound.graph.states.values()]
    widths = [copies * _width(kind, vocab_size) * DTYPES[kind.kind].itemsize for kind, copies in kinds]
    tokens = max_context if tokens_seen(bound.graph) is None else 2 * MOST_RECENT
    return (num_rows + 1) * (sum(widths) + tokens * torch.int64.itemsize)


def inputs_read(graph: Graph, outputs: Sequence[int]) -> frozenset[str]:
    """Names of what some nodes are made of that the step brings."""
    found, needed, todo = set(), set(), list(outputs)
    while todo:
        at = todo.pop()
        if at in needed:
            continue
        needed.add(at)
        node = graph.nodes[at]
        todo += node.args
        if node.op == "input":
            found.add(str(node.attributes[0]))
    return frozenset(found)


def _is_all_tokens(graph: Graph, node: int) -> bool:
    """Whether a node is the whole history, or something as long."""
    source = graph.nodes[node]
    return source.op == "input" and source.attributes[0] in _OF_TOKENS


def _width(kind: Type, vocab_size: int) -> int:
    return 1 if kind.axis is None else vocab_size


class ProgramTable:
    """Rows of sequences that run the same program.

    Args:
        bound: The program; of its parameters the types alone.
        num_rows: R.
        vocab_size: V.
        device: Where steps are computed.
        max_context: Tokens of the longest sequence.

    Attributes:
        bound: The program.
        program: It, ready to be computed.
        device: The same.
        spare: R, the row of lanes that do not run it.
        most_context: Tokens of the longest context that a step may have; None if it may be any.
        vocab_size: V.
        reads: What the program reads of a step, as far as a recorded one computes it.
        num_seen: Newest tokens that are kept of a row.
        room: Numbers of `tokens` a row.
        used: [R + 1] bool, rows that run it.
        numbers: [R + 1, 2] int64, stream key and tokens of the prompt.
        parameters: [R + 1, 1] or [R + 1, V] by name.
        states: [2 * (R + 1), 1] or [.., V] by name: after an even and after an odd position.
        tokens: [R + 1, room] int64, by position.
    """

    def __init__(
        self, bound: BoundProgram, num_rows: int, vocab_size: int, device: torch.device, max_context: int
    ) -> None:
        seen = tokens_seen(bound.graph)
        self.bound = bound
        most = min(max_context, MOST_HISTORY)
        self.most_context = most if seen is None else None
        self.device = device
        self.num_seen = most if seen is None else seen
        self.vocab_size = vocab_size
        self.spare = num_rows
        self.program = TorchProgram(bound.graph, vocab_size, device)

        def make(width: int, kind: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_rows + 1, width), dtype=kind, device=device)

        self.used = torch.zeros(num_rows + 1, dtype=torch.bool, device=device)
        self.numbers = make(2, torch.int64)
        self.parameters = {name: make(_width(kind, vocab_size), DTYPES[kind.kind]) for name, kind in bound.types}
        self.states = {
            name: make(STATES * _width(kind, vocab_size), DTYPES[kind.kind]).view((num_rows + 1) * STATES, -1)
            for name, (kind, _) in bound.graph.states.items()
        }
        # Of some tokens there is room for more than are seen: what is drawn again may already be there.
        self.room = self.most_context or 2 * max(1, self.num_seen)
        self.tokens = make(self.room if self.num_seen else 0, torch.int64)
        self._at = torch.arange(self.most_context or 0, device=device)
        graph, token = bound.graph, bound.graph.nodes[bound.graph.token]
        last = token.args[0] if self.program.can_defer else graph.token
        self.reads = inputs_read(graph, (last, *graph.updates.values(), *graph.probes.values()))

    def all_tokens(self, places: torch.Tensor, lengths: torch.Tensor, context: int) -> torch.Tensor:
        """Histories of rows [M] int64 with lengths [M] int64 of at most so many tokens: [M, T] int64, then -1."""
        tokens = self.tokens[:, :context].index_select(0, places)
        return torch.where(self._at[:context] < lengths[:, None], tokens, -1)

    def counts(self, history: torch.Tensor, num_prompts: torch.Tensor) -> torch.Tensor:
        """How often each token is in the output: [M, V] int64 from histories [M, T] and tokens of prompts [M, 1]."""
        is_output = (self._at[: history.shape[1]] >= num_prompts) & (history >= 0)
        out = torch.zeros((len(history), self.vocab_size), dtype=torch.int64, device=self.device)
        return out.scatter_add_(1, history.clamp_min(0), is_output.long())
