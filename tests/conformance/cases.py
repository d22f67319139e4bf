"""Programs that every lane must give the same answer to: samplers, constraints, masks, forks, stops and seeds.

A case is one generation, or several on forks, with what happens to its context before. How a lane computes it is in
`tests.conformance.lanes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT = [{"role": "user", "content": "What is the capital of France? Say it three times, then count to ten."}]
TURNS = [
    {"role": "system", "content": "You count."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "And then?"},
]
TEXT = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36"
FREE: Mapping[str, Any] = {"max_tokens": 12, "template_stops": False}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMAR = 'start: item (", " item)*\nitem: /[a-c]{2}/\n'


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One program.

    Attributes:
        options: Of each generation, as `ctx.generate` takes them.
        prompt: What the context begins with.
        before: Lines of the script that change `ctx`.
        forks: Generations, each on a fork of its own with a seed of its own; 0 for one on the context itself.
        in_fork: Lines that change `ctx`, a fork, before its generation; `at` is its number.
        after: Generations that follow on the same context, with the same options.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: Any = field(default_factory=lambda: CHAT)
    before: str = ""
    forks: int = 0
    in_fork: str = ""
    after: int = 0


def _free(**options: Any) -> Case:
    return Case(options={**FREE, **options})


def _held(constrain: Mapping[str, Any], **options: Any) -> Case:
    return Case(options={"max_tokens": 40, "constrain": constrain, **options})


CASES: Mapping[str, Case] = {
    # Samplers.
    "greedy": _free(temperature=0.0),
    "a cool draw": _free(temperature=0.3, seed=1),
    "a plain draw": _free(temperature=1.0, seed=2),
    "a hot draw": _free(temperature=2.0, seed=3),
    "top_k": _free(temperature=1.0, top_k=5, seed=4),
    "top_k of one": _free(temperature=1.5, top_k=1, seed=4),
    "top_p": _free(temperature=1.2, top_p=0.4, seed=5),
    "top_p of next to nothing": _free(temperature=1.2, top_p=1e-6, seed=5),
    "min_p": _free(temperature=1.4, min_p=0.3, seed=6),
    "top_k, then top_p": _free(temperature=1.0, top_k=20, top_p=0.5, seed=7),
    "top_k, top_p and min_p": _free(temperature=1.7, top_k=30, top_p=0.9, min_p=0.2, seed=8),
    "no seed and no temperature": _free(temperature=0.0, top_p=0.5),
    # Penalties and biases.
    "a repetition penalty": _free(temperature=0.0, repetition_penalty=1.4),
    "a presence penalty": _free(temperature=0.0, presence_penalty=1.7),
    "a frequency penalty": _free(temperature=0.9, frequency_penalty=1.1, seed=9),
    "all penalties": _free(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=0.6, top_k=40, seed=10
    ),
    "a token made likely": _free(temperature=1.0, logit_bias={70: 6.0, 71: 5.0}, seed=11),
    "tokens made impossible": _free(temperature=0.0, logit_bias=dict.fromkeys(range(60, 300), -100.0)),
    # Ends.
    "one token": _free(max_tokens=1, temperature=0.0),
    "two tokens": _free(max_tokens=2, temperature=1.0, seed=12),
    "the template's end": Case(options={"max_tokens": 20, "temperature": 1.0, "seed": 1, "logit_bias": {2: 5.0}}),
    "an end that comes at once": Case(options={"max_tokens": 20, "temperature": 0.0, "logit_bias": {2: 100.0}}),
    "an end that must wait": Case(
        options={"max_tokens": 20, "temperature": 0.0, "logit_bias": {2: 100.0}, "min_tokens": 5}
    ),
    "a stop token": _free(temperature=1.0, seed=13, stop_token_ids=list(range(200, 330))),
    "a stop token that must wait": _free(temperature=1.0, seed=13, stop_token_ids=list(range(3, 480)), min_tokens=4),
    "a stop string": _free(max_tokens=40, temperature=1.5, seed=14, stop="e"),
    "stop strings": _free(max_tokens=40, temperature=1.5, seed=15, stop=["zz", " ", "a"]),
    # Constraints.
    "a regular expression": _held({"regex": "[0-9]{3}-[a-f]{4}"}, temperature=0.0),
    "a regular expression, drawn": _held({"regex": "[0-9]{3}-[a-f]{4}"}, temperature=1.0, seed=16),
    "a regular expression without end": _held(
        {"regex": "(ab|cd)+"}, temperature=1.0, seed=17, max_tokens=9, template_stops=False
    ),
    "a schema": _held({"json_schema": SCHEMA}, temperature=0.0),
    "a schema, drawn from few": _held({"json_schema": SCHEMA}, temperature=1.3, top_k=3, seed=18),
    "a choice": _held({"choice": ["Paris", "Lyon", "Par"]}, temperature=1.0, seed=19),
    "a choice of one": _held({"choice": ["exactly this"]}, temperature=1.0, seed=20),
    "a grammar": _held({"grammar": GRAMMAR}, temperature=0.7, seed=21, max_tokens=15),
    "a grammar under penalties": _held(
        {"grammar": GRAMMAR}, temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0, max_tokens=15
    ),
    "a constraint and a stop string": _held({"regex": "[a-z ]{5,30}"}, temperature=1.0, seed=22, stop=" "),
    "a constraint cut by its length": _held({"json_schema": SCHEMA}, temperature=0.0, max_tokens=4),
    "a constraint against a bias": _held(
        {"regex": "[0-9]+x"}, temperature=1.0, seed=23, logit_bias=dict.fromkeys(range(60, 120), 8.0)
    ),
    # Masks.
    "a hidden span": Case(options={**FREE, "temperature": 0.0}, prompt=TEXT, before="await ctx.hide(4, 30)"),
    "a dropped span": Case(options={**FREE, "temperature": 0.0}, prompt=TEXT, before="await ctx.drop(10, 60)"),
    "a dropped span, computed before": Case(
        options={**FREE, "temperature": 1.0, "seed": 24},
        prompt=TEXT,
        before="await ctx.prefill()\nawait ctx.drop(10, 60)",
    ),
    "spans dropped one after the other": Case(
        options={**FREE, "temperature": 0.0},
        prompt=TEXT,
        before="await ctx.prefill()\nawait ctx.drop(3, 21)\nawait ctx.append(' 37')\nawait ctx.drop(21, 50)",
    ),
    "a forgotten span": Case(
        options={**FREE, "temperature": 0.0}, prompt=TEXT, before="await ctx.prefill()\nawait ctx.forget(5, 40)"
    ),
    "hidden, dropped and forgotten": Case(
        options={**FREE, "temperature": 1.0, "top_p": 0.8, "seed": 25},
        prompt=TEXT,
        before="await ctx.hide(2, 6)\nawait ctx.prefill()\nawait ctx.drop(20, 45)\nawait ctx.forget(50, 55)",
    ),
    "a dropped span under a constraint": _held({"regex": "[0-9]{2} [a-z]{3}"}, temperature=1.0, seed=26),
    # Histories.
    "a rewound history": Case(
        options={**FREE, "temperature": 1.0, "seed": 27},
        before="mark = await ctx.mark()\nawait ctx.generate(max_tokens=7, seed=1)\nawait ctx.rewind(mark)",
    ),
    "a cut history": Case(
        options={**FREE, "temperature": 1.0, "seed": 28},
        prompt=TEXT,
        before="await ctx.prefill()\nawait ctx.truncate(33)",
    ),
    "several turns": Case(options={**FREE, "temperature": 0.0}, prompt=TURNS),
    "a turn after a generation": Case(
        options={**FREE, "temperature": 0.9, "seed": 29},
        before="await ctx.generate(max_tokens=5, seed=2)\nawait ctx.append([{'role': 'user', 'content': 'More.'}])",
    ),
    "token ids": Case(options={**FREE, "temperature": 0.0}, prompt=list(range(40, 75))),
    "a prompt of one token": Case(options={**FREE, "temperature": 1.0, "seed": 30}, prompt=[65]),
    "a prompt that is in the cache": Case(
        options={**FREE, "temperature": 1.0, "seed": 31},
        prompt=TEXT,
        before="await ctx.prefill()\nawait ctx.release()\nctx = await lm.context(PROMPT)",
    ),
    "generation after generation": Case(options={"max_tokens": 5, "temperature": 1.0, "seed": 32}, after=3),
    # Forks.
    "forks with seeds of their own": Case(options={**FREE, "temperature": 1.0}, forks=4),
    "forks of what is computed": Case(options={**FREE, "temperature": 1.0}, forks=3, before="await ctx.prefill()"),
    "forks of a fork": Case(
        options={**FREE, "temperature": 1.0, "top_k": 50},
        forks=3,
        before="ctx = await ctx.fork()\nctx = await ctx.fork()",
    ),
    "forks that part": Case(
        options={**FREE, "temperature": 0.0},
        forks=3,
        in_fork="await ctx.append([{'role': 'user', 'content': str(at)}])",
    ),
    "forks under a constraint": Case(
        options={"max_tokens": 30, "temperature": 1.0, "constrain": {"regex": "[0-9]{2}(yes|no)"}}, forks=3
    ),
    "forks with spans dropped": Case(
        options={**FREE, "temperature": 1.0},
        prompt=TEXT,
        before="await ctx.prefill()",
        forks=3,
        in_fork="await ctx.drop(16 * at, 16 * at + 20)",
    ),
    "forks with a stop string": Case(options={"max_tokens": 30, "temperature": 1.5, "stop": ["e", "t"]}, forks=4),
    # Seeds.
    "seed 0": _free(temperature=1.0, seed=0),
    "the greatest seed": _free(temperature=1.0, seed=2**63 - 1),
    "a negative seed": _free(temperature=1.0, seed=-17),
}
