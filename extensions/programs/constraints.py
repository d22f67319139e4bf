"""What a script says a text must be, to the constraint that the engine compiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.request import ConstraintKind, ConstraintSpec
from extensions.programs.faults import fault
from extensions.programs.jsons import check_depth

_PARAM = "constrain"


class ScriptConstraint:
    """A constraint that was made once, to be used several times; see `Constraint` in the stubs.

    Attributes:
        spec: What the engine compiles; it remembers compiled ones by this.
        tools: The text is calls of these; none if it is not.
    """

    def __init__(self, spec: ConstraintSpec, tools: Sequence[str] = ()) -> None:
        self.spec = spec
        self.tools = tuple(tools)


def spec_of(constrain: object) -> ConstraintSpec | None:
    """Reads the argument `constrain`.

    Raises:
        ValueError: It is nothing that a text can be held to (`constraint_invalid`).
    """
    if constrain is None:
        return None
    if isinstance(constrain, ScriptConstraint):
        return constrain.spec
    if not isinstance(constrain, Mapping) or len(constrain) != 1:
        message = f"a constraint is a dict with one of the keys {_names()}, or a Constraint"
        raise fault("constraint_invalid", message)
    kind, value = next(iter(constrain.items()))
    if kind not in _KINDS:
        raise fault("constraint_invalid", f"there is no constraint {kind!r}; there are {_names()}")
    return _KINDS[kind](value)


def _names() -> str:
    # The last one is read where the tools are known, in `tool_constraint`.
    return ", ".join((*_KINDS, "tools"))


def _json_schema(value: object) -> ConstraintSpec:
    if not isinstance(value, Mapping | bool):
        raise fault("constraint_invalid", "json_schema must be a schema, as a dict")
    check_depth(value, "json_schema")
    try:
        source = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise fault("constraint_invalid", f"json_schema is no JSON: {error}") from None
    return ConstraintSpec(kind=ConstraintKind.JSON_SCHEMA, source=source, param=_PARAM)


def _text(kind: ConstraintKind, name: str) -> Callable[[object], ConstraintSpec]:
    def read(value: object) -> ConstraintSpec:
        if not isinstance(value, str) or not value:
            raise fault("constraint_invalid", f"{name} must be text that is not empty")
        return ConstraintSpec(kind=kind, source=value, param=_PARAM)

    return read


def _choice(value: object) -> ConstraintSpec:
    if not _is_choice(value):
        raise fault("constraint_invalid", "choice must be a list of texts, at least one")
    return ConstraintSpec(kind=ConstraintKind.CHOICE, source=json.dumps(value, ensure_ascii=False), param=_PARAM)


def _is_choice(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and len(value) > 0 and all(isinstance(one, str) for one in value)


_KINDS: dict[str, Callable[[object], ConstraintSpec]] = {
    "json_schema": _json_schema,
    "regex": _text(ConstraintKind.REGEX, "regex"),
    "grammar": _text(ConstraintKind.LARK, "grammar"),
    "choice": _choice,
}
