"""Device programs as a script has them: checked once, used by any of its generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.programs.binding import bind_drafter, bind_sampler
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.lowering import MAX_LANES
from engine.programs.syntax import PROPOSE, parse
from engine.request import ProgramSpec
from extensions.programs.faults import fault, invalid


class ScriptProgram:
    """A device program with its parameters; see `Program` in the stubs.

    Attributes:
        spec: What the engine computes.
        num_lanes: Contexts that it reads.
        guesses: It guesses tokens (`propose`) and draws none.
    """

    def __init__(self, spec: ProgramSpec, num_lanes: int, *, guesses: bool = False) -> None:
        self.spec = spec
        self.num_lanes = num_lanes
        self.guesses = guesses


def make_program(source: object, parameters: Mapping[str, Any], vocab_size: int) -> ScriptProgram:
    """Checks a device program.

    Raises:
        ValueError: It is none (`program_invalid`), or a parameter does not fit it (`invalid_argument`).
    """
    if not isinstance(source, str):
        raise invalid("source must be text")
    try:
        guesses = parse(source).function == PROPOSE
        if guesses:
            bound = bind_drafter(source, parameters, vocab_size)
        else:
            bound = bind_sampler(source, parameters, vocab_size, num_lanes=MAX_LANES, probes=True)
    except ProgramMisused as error:
        raise invalid(str(error)) from None
    except ProgramInvalid as error:
        raise fault("program_invalid", str(error)) from None
    spec = ProgramSpec(source=source, parameters=dict(parameters))
    return ScriptProgram(spec, max(bound.graph.num_lanes, 1), guesses=guesses)


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
    if program.guesses:
        raise fault("program_invalid", "it guesses tokens (propose) and draws none: it is for drafter")
    if program.num_lanes > 1:
        raise fault("program_invalid", f"it reads {program.num_lanes} lanes; one context has one (see lm.forward)")
    return program.spec
