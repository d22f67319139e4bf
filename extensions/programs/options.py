"""Keyword arguments of a script's `generate` to what a generation is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import ConstraintSpec, DrafterSpec, EngineInfo, ProgramSpec
from engine.sampling.params import SamplingParams
from extensions.output import GenerateOptions
from extensions.programs.constraints import ScriptConstraint, spec_of
from extensions.programs.drafters import read_drafter
from extensions.programs.faults import invalid
from extensions.programs.planner import Feature
from extensions.programs.samplers import sampler_of, verifier_of

MAX_STOP_STRINGS = 64
"""Stop strings of one generation."""

MAX_LOGPROBS = 20
"""Alternatives a token that a script may ask for."""

_MAX_BIAS = 100.0
MAX_STOP_IDS = 1024
"""Stop tokens of one generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a script asked for, checked as far as it can be without a history.

    Attributes:
        max_tokens: None takes all that fit.
        sampling: The other fields of `SamplingParams`.
        stop: Stop strings.
        constraint: What the text must be.
        tools: The constraint says that it is calls of these.
        program: What draws its tokens instead of the sampler.
        drafter: Guesses its tokens ahead.
    """

    max_tokens: int | None
    sampling: Mapping[str, Any]
    stop: tuple[str, ...]
    constraint: ConstraintSpec | None
    tools: tuple[str, ...] = ()
    program: ProgramSpec | None = None
    drafter: DrafterSpec | None = None

    @property
    def features(self) -> list[Feature]:
        """What it uses beyond sampling parameters, constraints and stops."""
        found = [Feature.PROGRAM] if self.program is not None else []
        if self.drafter is not None:
            found += [Feature.GUESSES] if self.drafter.given else []
            found += [Feature.GUESSING_PROGRAM] if self.drafter.program is not None else []
        return found

    def options(self, *, num_left: int, logprobs: int | None) -> GenerateOptions:
        """For a history that has room for as many tokens.

        Raises:
            InvalidRequest: A value is out of its range.
        """
        max_tokens = num_left if self.max_tokens is None else self.max_tokens
        sampling = SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **self.sampling)
        return GenerateOptions(
            sampling=sampling,
            stop=self.stop,
            report_tokens=logprobs is not None,
            constraint=self.constraint,
            program=self.program,
            drafter=self.drafter,
        )


def read_options(fields: Mapping[str, Any], info: EngineInfo) -> Asked:
    """Reads the arguments that were given; None counts as left out, which is the model's own recommendation.

    Args:
        fields: Arguments by name; others than those of sampling may be among them.
        info: Of the engine.

    Raises:
        ValueError: One is not what it must be (`invalid_argument`, `constraint_invalid`).
    """
    given = {name: value for name, value in fields.items() if value is not None}
    defaults = info.defaults
    sampling: dict[str, Any] = {
        "temperature": _number(given, "temperature", defaults.temperature, 1.0),
        "top_p": _number(given, "top_p", defaults.top_p, 1.0),
        "top_k": max(_integer(given, "top_k", defaults.top_k or 0), 0),
        "min_p": _number(given, "min_p", defaults.min_p, 0.0),
        "repetition_penalty": _number(given, "repetition_penalty", defaults.repetition_penalty, 1.0),
        "presence_penalty": _number(given, "presence_penalty", None, 0.0),
        "frequency_penalty": _number(given, "frequency_penalty", None, 0.0),
        "logit_bias": _bias(given.get("logit_bias", {})),
        "min_tokens": _integer(given, "min_tokens", 0),
        "seed": _integer(given, "seed", 0) if "seed" in given else None,
        "stop_token_ids": tuple(token_ids(given.get("stop_token_ids", ()), "stop_token_ids", MAX_STOP_IDS)),
        "ignore_eos": not flag(given.get("template_stops", True), "template_stops"),
    }
    max_tokens = _integer(given, "max_tokens", 0) if "max_tokens" in given else None
    if max_tokens is not None and max_tokens < 1:
        raise invalid(f"max_tokens must be at least 1, got {max_tokens}")
    return Asked(
        max_tokens=max_tokens,
        sampling=sampling,
        stop=_stop(given.get("stop", ())),
        constraint=spec_of(constrain := given.get("constrain")),
        tools=constrain.tools if isinstance(constrain, ScriptConstraint) else (),
        program=_drawer(given, info.vocab_size),
        drafter=read_drafter(given.get("drafter"), info.vocab_size),
    )


def _drawer(given: Mapping[str, Any], vocab_size: int) -> ProgramSpec | None:
    """What says which tokens come, if that is not the sampler."""
    judge = verifier_of(given.get("verify"), vocab_size)
    if judge is None:
        return sampler_of(given.get("sampler"), vocab_size)
    if "sampler" in given:
        raise invalid("sampler and verify both say which tokens come: only one of them can")
    return judge.spec


def read_logprobs(value: object, name: str = "logprobs") -> int | None:
    """Alternatives a token; None for no log-probabilities.

    Raises:
        ValueError: It is no number of them.
    """
    if value is None:
        return None
    if not _is_integer(value) or not 0 <= value <= MAX_LOGPROBS:  # type: ignore[operator]
        raise invalid(f"{name} must be a whole number from 0 to {MAX_LOGPROBS}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def token_ids(value: Any, name: str, most: int | None = None) -> list[int]:
    """A list of token ids.

    Raises:
        ValueError: It is none, or has more than `most`.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise invalid(f"{name} must be a list of token ids")
    ids = list(value)
    if not all(_is_integer(one) for one in ids):
        raise invalid(f"{name} must be a list of token ids")
    if most is not None and len(ids) > most:
        raise invalid(f"{name} has {len(ids)} entries, at most {most} are allowed")
    return ids


def flag(value: object, name: str) -> bool:
    """True or false.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(value, bool):
        raise invalid(f"{name} must be True or False")
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(given: Mapping[str, Any], name: str, recommended: float | None, neutral: float) -> float:
    value = given.get(name)
    if value is None:
        return neutral if recommended is None else recommended
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{name} must be a number")
    return float(value)


def _integer(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name, default)
    if not _is_integer(value):
        raise invalid(f"{name} must be a whole number")
    return int(value)


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise invalid("logit_bias must be a dict from token ids to numbers")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key
        if not _is_integer(token_id) or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise invalid("logit_bias must be a dict from token ids to numbers")
        biases[token_id] = max(-_MAX_BIAS, min(_MAX_BIAS, float(bias)))
    return biases


def _stop(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or not all(isinstance(one, str) and one for one in stops):
        raise invalid("stop must be a text or a list of texts, none of them empty")
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid(f"stop has {len(stops)} strings, at most {MAX_STOP_STRINGS} are allowed")
    return tuple(stops)
