"""What a script asks of passes that run ahead of it, as it has it for a plain generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from extensions.programs.faults import invalid
from extensions.programs.options import Asked, read_options
from extensions.programs.tool_constraint import resolved

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

Stop = Literal["template"] | Sequence[str] | None

_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The program draws: what the model's authors recommend is for the sampler."""


def single_draw(scope: RunScope, seed: int | None) -> Asked:
    """One pass, which no token ends.

    Raises:
        ValueError: The seed is no whole number (`invalid_argument`).
    """
    return read_options({**_NEUTRAL, "max_tokens": 1, "seed": seed, "template_stops": False}, scope.engine.info)


async def read_ahead(scope: RunScope, budget: object, stop: Any, fields: Mapping[str, Any]) -> Asked:
    """Reads the arguments of `run_ahead`.

    Args:
        scope: The run.
        budget: Passes at most.
        stop: What ends them.
        fields: Further arguments by name, as those of `generate`; None counts as left out.

    Raises:
        ValueError: One is not what it must be (`invalid_argument`, `constraint_invalid`).
        LookupError: A tool of the constraint is not there (`tool_not_found`).
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise invalid("budget must be a whole number of tokens, at least 1")
    texts: Any = ()
    if isinstance(stop, Sequence) and not isinstance(stop, str | bytes):
        texts = stop
    elif stop not in ("template", None):
        raise invalid('stop must be "template", None, or a list of texts; single tokens go into stop_token_ids')
    given = {name: value for name, value in fields.items() if value is not None}
    constrain = await resolved(given.get("constrain"), scope)
    options = {"template_stops": stop is not None, **given, "stop": texts, "constrain": constrain}
    return read_options({**_NEUTRAL, **options, "max_tokens": budget}, scope.engine.info)
