"""Device programs as a script has them: checked once, used by any of its generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.programs.adapters import read_values
from engine.programs.binding import (
    BoundProgram,
    bind_drafter,
    bind_keep,
    bind_mask,
    bind_sampler,
    bind_verifier,
    check_names,
    misplaced,
)
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.lowering import MAX_LANES
from engine.programs.purposes import ADAPTER, KEEP, MASK, PROPOSE, SAMPLE, VERIFY
from engine.programs.syntax import parse
from engine.programs.verify_rules import VERIFY_RULES
from engine.request import ProgramSpec
from extensions.programs.faults import fault, invalid


class ScriptProgram:
    """A device program with its parameters; see `Program` in the stubs.

    Attributes:
        spec: What the engine computes.
        function: What it is for, see `engine.programs.purposes`.
        bound: The program, checked; None of an adapter, which is checked for the sites that it is given.
        num_lanes: Contexts that it reads.
        judges: It judges guesses (`verify`).
    """

    def __init__(self, spec: ProgramSpec, function: str, bound: BoundProgram | None) -> None:
        self.spec = spec
        self.function = function
        self.bound = bound
        self.num_lanes = 1 if bound is None else max(bound.graph.num_lanes, 1)
        self.judges = function == VERIFY

    def check(self, wanted: str) -> None:
        """Refuses it where another function is needed; see `engine.programs.purposes`.

        Raises:
            ValueError: It does something else (`program_invalid`).
        """
        if self.function != wanted:
            raise fault("program_invalid", misplaced(self.function, wanted))


def make_program(source: object, parameters: Mapping[str, Any], vocab_size: int) -> ScriptProgram:
    """Checks a device program.

    Raises:
        ValueError: It is none (`program_invalid`), or a parameter does not fit it (`invalid_argument`).
    """
    if not isinstance(source, str):
        raise invalid("source must be text")
    given, bound = dict(parameters), None
    try:
        function = parse(source).function
        if function == ADAPTER:
            given = read_values(parameters)
            check_names(parse(source), given)
        else:
            bound = _bound(source, parameters, vocab_size)
    except ProgramMisused as error:
        raise invalid(str(error)) from None
    except ProgramInvalid as error:
        raise fault("program_invalid", str(error)) from None
    return ScriptProgram(ProgramSpec(source=source, parameters=given), function, bound)


def _bound(source: str, parameters: Mapping[str, Any], vocab_size: int) -> BoundProgram:
    function = parse(source).function
    if function == PROPOSE:
        return bind_drafter(source, parameters, vocab_size)
    if function == MASK:
        return bind_mask(source, parameters)
    if function == KEEP:
        return bind_keep(source, parameters)
    if function == VERIFY:
        return bind_verifier(source, parameters, vocab_size)
    return bind_sampler(source, parameters, vocab_size, num_lanes=MAX_LANES, probes=True)


def sampler_of(sampler: object, vocab_size: int) -> ProgramSpec | None:
    """Reads the argument `sampler`: a program, its text, or nothing.

    Raises:
        ValueError: It is nothing that could draw tokens (`invalid_argument`, `program_invalid`).
    """
    if sampler is None:
        return None
    program = make_program(sampler, {}, vocab_size) if isinstance(sampler, str) else sampler
    if not isinstance(program, ScriptProgram):
        raise invalid("sampler must be a Program made by lm.program, or the text of one without parameters")
    program.check(SAMPLE)
    if program.num_lanes > 1:
        raise fault("program_invalid", f"it reads {program.num_lanes} lanes; one context has one (see lm.forward)")
    return program.spec


def verifier_of(verify: object, vocab_size: int) -> ScriptProgram | None:
    """Reads the argument `verify`: the name of a rule, a program, its text, or nothing.

    Raises:
        ValueError: It is nothing that could judge guesses (`invalid_argument`, `program_invalid`).
    """
    if verify is None:
        return None
    if isinstance(verify, str):
        verify = make_program(VERIFY_RULES.get(verify, verify), {}, vocab_size) if _is_rule(verify) else verify
    if not isinstance(verify, ScriptProgram):
        names = ", ".join(f'"{name}"' for name in VERIFY_RULES)
        raise invalid(f"verify must be one of {names}, or a program with a function `verify`")
    verify.check(VERIFY)
    return verify


def _is_rule(text: str) -> bool:
    return text in VERIFY_RULES or "def " in text
