"""A device program after its check: single assignments in the order in which they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.programs.types import Type

Constant = bool | int | float


@dataclass(frozen=True, slots=True)
class Node:
    """One value.

    Attributes:
        op: What makes it; see `engine.programs.operations`, and the sources `constant`, `parameter`, `state`, `input`
            and `lane`.
        args: The nodes it is made of.
        attributes: Constants that belong to the operation.
        type: Of the value.
    """

    op: str
    args: tuple[int, ...]
    attributes: tuple[Constant | str, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Graph:
    """One function of a program, for given types of its parameters.

    Attributes:
        nodes: Each refers to earlier ones only.
        parameters: The program's own, with their types.
        inputs: Names of what it reads of the step: `logits`, `prev`, `history`...
        num_lanes: How many `lanes` it reads; 0 if it reads `logits` alone.
        states: Carried from step to step, with their types and the nodes of their first values.
        token: The node of what it returns: the token, of guesses the first, or what a mask rule says.
        guesses: Of a program that guesses: the nodes of the tokens, or the one of a vector of them.
        weights: For each guess what it was drawn from, or none.
        updates: State after the step, by name.
        probes: What the host may read of the step, by name.
    """

    nodes: tuple[Node, ...]
    parameters: Mapping[str, Type]
    inputs: frozenset[str]
    num_lanes: int
    states: Mapping[str, tuple[Type, int]]
    token: int
    guesses: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    updates: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, int] = field(default_factory=dict)
