"""A program with the values of its parameters: what a request brings to a step."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.graph import Graph
from engine.programs.lowering import lower
from engine.programs.purposes import KEEP, MASK, PROPOSE, PURPOSES, SAMPLE, VERIFY
from engine.programs.syntax import Parsed, parse
from engine.programs.types import VOCAB, Kind, Type

GREATEST_FLOAT = (2 - 2**-23) * 2.0**127
"""Of float32."""

MAX_LIST = 4096
"""Numbers in one list that a mask rule is given."""

MAX_JUDGING = 256
"""Values of a program that judges guesses."""

Parameter: TypeAlias = "bool | int | float | array[float] | array[int]"
"""A number, one float32 per token of the vocabulary, or a list of a mask rule's own; plain, so that checking a program
needs no library."""


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A checked program and its parameters.

    Attributes:
        digest: Of the source; programs with the same digest and parameter types are computed together.
        function: What it is for, one of `engine.programs.purposes.PURPOSES`.
        types: Name and type of each parameter.
        graph: What is computed.
        parameters: Their values: scalars or vectors.
    """

    digest: str
    function: str
    types: tuple[tuple[str, Type], ...]
    graph: Graph
    parameters: Mapping[str, Parameter]


def bind(source: str, values: Mapping[str, Any], vocab_size: int) -> BoundProgram:
    """Checks a program together with what it is given.

    Args:
        source: The program.
        values: For each of its parameters without a default a number, True or False, or a list of one number per
            token of the vocabulary; of a mask rule a list of any numbers.
        vocab_size: Of the model that it will run on.

    Raises:
        ProgramInvalid: The source is no program, or does not go with parameters of these types.
        ProgramMisused: A parameter is missing, unknown, or no number.
    """
    parsed = parse(source)
    check_names(parsed, values)
    parameters: dict[str, Parameter] = {}
    types = []
    for name in parsed.parameters:
        value = values[name] if name in values else parsed.defaults[name]
        is_list = parsed.function == MASK and isinstance(value, list | tuple)
        kind, parameters[name] = _read_list(name, value) if is_list else _read(name, value, vocab_size)
        types.append((name, kind))
    graph = lower(source, tuple(types))
    most = max((int(node.attributes[0]) for node in graph.nodes if node.op == "top"), default=0)
    if most > vocab_size:
        raise ProgramMisused(f"topk asks for {most} values of a vocabulary of {vocab_size}", "topk")
    return BoundProgram(parsed.digest, parsed.function, tuple(types), graph, parameters)


def check_names(parsed: Parsed, values: Mapping[str, Any]) -> None:
    """Refuses values for parameters that a program does not have, and a lack of those that it has.

    Raises:
        ProgramMisused: With the name.
    """
    unknown = sorted(set(values) - set(parsed.parameters))
    if unknown:
        known = ", ".join(parsed.parameters) or "none"
        raise ProgramMisused(f"the program has no parameter `{unknown[0]}` (it has: {known})", unknown[0])
    for name in parsed.parameters:
        if name not in values and name not in parsed.defaults:
            raise ProgramMisused(f"the program needs a value for its parameter `{name}`", name)


def check_purpose(function: str, wanted: str) -> None:
    """Refuses a program that is for something else.

    Raises:
        ProgramInvalid: It is.
    """
    if function != wanted:
        raise ProgramInvalid(misplaced(function, wanted), 1, 1)


def misplaced(function: str, wanted: str) -> str:
    """What is said of a program that is for something else."""
    found, needed = PURPOSES[function], PURPOSES[wanted]
    return f"`{function}` {found.meaning}, it is {found.use}; here `{wanted}` is needed, which {needed.meaning}"


def bind_sampler(
    source: str, values: Mapping[str, Any], vocab_size: int, *, num_lanes: int = 1, probes: bool = False
) -> BoundProgram:
    """Checks a program that is to draw tokens; see `bind`.

    Args:
        source: The program.
        values: Of its parameters.
        vocab_size: Of the model that it will run on.
        num_lanes: Contexts whose logits it may read.
        probes: Somebody reads what it notes down.

    Raises:
        ProgramInvalid: As there; or it reads more lanes than there are, or writes probes that nobody could read.
        ProgramMisused: As there.
    """
    bound = bind(source, values, vocab_size)
    check_purpose(bound.function, SAMPLE)
    graph = bound.graph
    if graph.num_lanes > num_lanes:
        there = "a sequence has one" if num_lanes == 1 else f"there are {num_lanes}"
        raise ProgramInvalid(f"it reads several lanes, up to lanes[{graph.num_lanes - 1}]; {there}", 1, 1)
    if graph.probes and not probes:
        names = ", ".join(f"probe.{name}" for name in sorted(graph.probes))
        raise ProgramInvalid(f"nobody reads what a sampler notes down ({names})", 1, 1)
    for name, node in graph.probes.items():
        if graph.nodes[node].type.axis == VOCAB:
            raise ProgramInvalid(f"probe.{name} has a number for every token; note down single ones, or topk's", 1, 1)
    return bound


def bind_drawer(source: str, values: Mapping[str, Any], vocab_size: int, *, num_lanes: int = 1) -> BoundProgram:
    """Checks a program that is to say which token comes: it draws it, or judges the guess; see `bind`.

    Raises:
        ProgramInvalid: As for `bind_sampler`.
        ProgramMisused: As there.
    """
    if parse(source).function == VERIFY:
        return bind_verifier(source, values, vocab_size)
    return bind_sampler(source, values, vocab_size, num_lanes=num_lanes, probes=True)


def bind_verifier(source: str, values: Mapping[str, Any], vocab_size: int) -> BoundProgram:
    """Checks a program that is to judge guesses; see `bind`.

    Raises:
        ProgramInvalid: As there; or it does something else.
        ProgramMisused: As there.
    """
    bound = bind(source, values, vocab_size)
    check_purpose(bound.function, VERIFY)
    if len(bound.graph.nodes) > MAX_JUDGING:
        # A step judges whole guesses, one token after the other.
        raise ProgramInvalid(f"{len(bound.graph.nodes)} values, loops unrolled; {MAX_JUDGING} are allowed", 1, 1)
    return bound


def bind_drafter(source: str, values: Mapping[str, Any], vocab_size: int) -> BoundProgram:
    """Checks a program that is to guess tokens; see `bind`.

    Raises:
        ProgramInvalid: As there; or it draws tokens instead, or writes probes, which nobody could read.
        ProgramMisused: As there.
    """
    bound = bind(source, values, vocab_size)
    check_purpose(bound.function, PROPOSE)
    if bound.graph.probes:
        names = ", ".join(f"probe.{name}" for name in sorted(bound.graph.probes))
        raise ProgramInvalid(f"nobody reads what a drafter notes down ({names})", 1, 1)
    return bound


def bind_mask(source: str, values: Mapping[str, Any]) -> BoundProgram:
    """Checks a program that is to say what rows see; see `bind`.

    Raises:
        ProgramInvalid: As there; or it does something else.
        ProgramMisused: As there.
    """
    bound = bind(source, values, 0)
    check_purpose(bound.function, MASK)
    return bound


def bind_keep(source: str, values: Mapping[str, Any]) -> BoundProgram:
    """Checks a program that is to say what stays; see `bind`.

    Raises:
        ProgramInvalid: As there; or it does something else.
        ProgramMisused: As there.
    """
    bound = bind(source, values, 0)
    check_purpose(bound.function, KEEP)
    return bound


def _read_list(name: str, value: Any) -> tuple[Type, Parameter]:
    """A list of any numbers: bool, i64 or f32, whichever all of them are."""
    if not 0 < len(value) <= MAX_LIST:
        raise ProgramMisused(f"parameter `{name}` is a list of {len(value)}; 1 to {MAX_LIST} are allowed", name)
    if all(isinstance(one, bool) for one in value):
        return Type(Kind.BOOL, len(value)), array("b", value)
    if all(isinstance(one, int) and not isinstance(one, bool) and -(2**63) <= one < 2**63 for one in value):
        return Type(Kind.INT, len(value)), array("q", value)
    if all(_is_number(one) and (isinstance(one, float) or abs(one) < 2**63) for one in value):
        return Type(Kind.FLOAT, len(value)), array("f", value)
    raise ProgramMisused(f"parameter `{name}` must be a list of finite numbers of 64 bits, or of True and False", name)


def _read(name: str, value: Any, vocab_size: int) -> tuple[Type, Parameter]:
    match value:
        case bool():
            return Type(Kind.BOOL), value
        case int() if -(2**63) <= value < 2**63:
            return Type(Kind.INT), value
        case float() if abs(value) <= GREATEST_FLOAT:
            return Type(Kind.FLOAT), value
        case list() | tuple() if len(value) == vocab_size and all(_is_number(one) for one in value):
            return Type(Kind.FLOAT, VOCAB), array("f", value)
        case list() | tuple():
            raise ProgramMisused(
                f"parameter `{name}` is a list of {len(value)}; it must hold a finite number for each of the "
                f"{vocab_size} tokens of the vocabulary",
                name,
            )
    raise ProgramMisused(f"parameter `{name}` must be a finite number, True, False, or a list of numbers", name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= GREATEST_FLOAT
