"""The argument `drafter` of a script's `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.drafting.limits import MAX_DRAFT_TOKENS, check_drafter
from engine.errors import InvalidRequest
from engine.programs.purposes import PROPOSE
from engine.request import DrafterSpec
from extensions.programs.faults import invalid
from extensions.programs.samplers import ScriptProgram, make_program

_NUMBERS = ("max_tokens", "min_match", "max_match")
_NAMES = ("prompt_lookup", "none")


def read_drafter(value: object, vocab_size: int) -> DrafterSpec | None:
    """A drafter by its name, or as a dict with its numbers, or a device program; None for none.

    Raises:
        ValueError: It is none of these (`invalid_argument`, `program_invalid`).
    """
    if value is None:
        return None
    if isinstance(value, str) and value.startswith(("<function", "<bound method")):
        raise invalid("a function is called ahead only where the call itself names it: ctx.generate(drafter=propose)")
    program = make_program(value, {}, vocab_size) if isinstance(value, str) and "def " in value else value
    if isinstance(program, ScriptProgram):
        program.check(PROPOSE)
        return DrafterSpec(program=program.spec, max_tokens=MAX_DRAFT_TOKENS)
    given = {"type": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or given.get("type", "prompt_lookup") not in _NAMES:
        raise invalid(f"drafter must be one of {', '.join(_NAMES)}, a dict whose type is one of them, or a program")
    unknown = [key for key in given if key not in ("type", "reference", *_NUMBERS)]
    if unknown:
        raise invalid(f"drafter has no {str(unknown[0])[:80]!r}")
    if given.get("type") == "none":
        return None
    numbers = {name: given[name] for name in _NUMBERS if given.get(name) is not None}
    reference = given.get("reference") or []
    if isinstance(reference, str | bytes) or not isinstance(reference, Sequence):
        raise invalid("drafter's reference must be a list of token ids")
    for number in (*numbers.values(), *reference):
        if isinstance(number, bool) or not isinstance(number, int):
            raise invalid("drafter's numbers and token ids must be whole numbers")
    spec = DrafterSpec(**numbers, reference_ids=list(reference))
    try:
        check_drafter(spec, vocab_size)
    except InvalidRequest as error:
        raise invalid(f"{error.param}: {error.message}") from None
    return spec
