"""How each lane computes a case: the engine's own loop, a device program, or a script that decides on every token.

The engine's own loop computes it several times: token by token, and with tokens guessed ahead and verified, by itself,
by a device program, and by the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tests.conformance.cases import Case

Way = Literal["fused", "fused, guessed", "device", "device, guessed", "host", "host, chosen", "host, guessed"]
WAYS: tuple[Way, ...] = (
    "fused",
    "fused, guessed",
    "device",
    "device, guessed",
    "host",
    "host, chosen",
    "host, guessed",
)

SAMPLER = """
def sample(logits, key, temperature, top_k, top_p, min_p):
    place = rank(logits)
    ratio = exp((logits - max(logits)) / temperature)
    considered = where(place < top_k, ratio, 0.0)
    mass = cumsum(scatter(zeros(vocab), place, considered))
    missing = gather(mass, place) - ratio < top_p * sum(considered)
    kept = ((place < top_k) & missing & (ratio >= min_p)) | (place == 0)
    return gumbel_argmax(where(kept, logits / temperature, -1e30), key)
"""
"""Temperature and truncation of a plain request, as a device program."""

GREEDY = "def sample(logits):\n    return argmax(logits)\n"


BIGRAMS = """
def propose(history, places, prev):
    marked = places * vocab_size + history
    first = max(where(shift(history, 1) == prev, marked, -1))
    second = max(where(shift(history, 1) == first % vocab_size, marked, -1))
    return where(first < 0, -1, first % vocab_size), where(second < 0, -1, second % vocab_size)
"""
"""What followed the newest token where it stood last."""


def lane_of(way: Way) -> Literal["fused", "device", "host"]:
    """The lane that a way of computing must take."""
    match way:
        case "fused" | "fused, guessed":
            return "fused"
        case "device" | "device, guessed":
            return "device"
        case _:
            return "host"


def program_of(case: Case, way: Way) -> str:
    """The script that computes a case in one of the ways, and returns all that can be seen of it."""
    main = [f"PROMPT = {case.prompt!r}"]
    main += _making(case, way)
    main += ["ctx = await lm.context(PROMPT)", *case.before.splitlines()]
    if case.forks:
        main += [
            f"forks = await ctx.fork({case.forks})",
            "return await asyncio.gather(*[one(lm, fork, at, sampler, held) for at, fork in enumerate(forks)])",
        ]
    else:
        main += ["found = [await one(lm, ctx, 0, sampler, held)]"]
        main += ["found.append(await one(lm, ctx, 0, sampler, held))"] * case.after
        main += ["return found"]
    parts = _PROPOSE if way == "host, guessed" else []
    parts = [
        *parts,
        "async def one(lm, ctx, at, sampler, held):",
        *_indented(case.in_fork.splitlines() if case.forks else []),
    ]
    parts += _indented([*_generation(case, way), *_RECORD])
    return "\n".join([*parts, "", "", "async def main(request, lm):", *_indented(main)]) + "\n"


_PROPOSE = [
    "def propose(tokens, k):",
    "    for at in range(len(tokens) - 2, 0, -1):",
    "        if tokens[at] == tokens[-1]:",
    "            return tokens[at + 1 : at + 1 + min(k, 3)]",
    "    return tokens[:2]",
    "",
    "",
]

_RECORD = [
    "await ctx.prefill()",  # a stop string leaves the engine a token or two ahead, or behind
    "info = await ctx.info()",
    "place = await ctx.mark()",
    "more = (await ctx.generate(max_tokens=3, temperature=0.0, template_stops=False)).tokens",
    "await ctx.rewind(place)",
    "return [tokens, reason, info.length, info.pending, info.bytes, more]",
]


def _making(case: Case, way: Way) -> list[str]:
    sampler = "sampler = None"
    if way == "device":
        options = case.options
        if options["temperature"] == 0.0:
            sampler = f"sampler = await lm.program({GREEDY!r})"
        else:
            given = {
                "temperature": options["temperature"],
                "top_k": options.get("top_k", 10**6),
                "top_p": options.get("top_p", 2.0),
                "min_p": options.get("min_p", 0.0),
            }
            sampler = f"sampler = await lm.program({SAMPLER!r}, {_arguments(given)})"
    constrain = case.options.get("constrain")
    held = "held = None" if constrain is None else f"held = await lm.constraint({dict(constrain)!r})"
    return [sampler, held]


def _generation(case: Case, way: Way) -> list[str]:
    """Lines that generate on `ctx`, and leave `tokens` and `reason`."""
    options = {name: value for name, value in {**_NEUTRAL, **case.options}.items() if name != "constrain"}
    if way == "device":
        options = {name: value for name, value in options.items() if name not in _DRAWN}
    arguments = _arguments(options)
    if "constrain" in case.options:
        arguments += ", constrain=held"
    if case.forks:
        arguments += ", seed=100 + at"
    more = {
        "fused": "",
        "fused, guessed": ', drafter="prompt_lookup"',
        "device": ", sampler=sampler",
        "device, guessed": f", drafter={BIGRAMS!r}",
        "host, guessed": ", drafter=propose",
    }
    if way in more:
        return [
            f"answer = await ctx.generate({arguments}{more[way]})",
            "tokens, reason = answer.tokens, answer.finish_reason",
        ]
    choose = "choose=step.token" if way == "host, chosen" else ""
    return [
        f"gen = await ctx.generation({arguments})",
        "tokens = []",
        "step = await gen.step()",
        "while not step.finished:",
        "    tokens.append(step.token)",
        f"    step = await gen.step({choose})",
        "reason = step.finish_reason",
    ]


_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Said by every case, for a model may recommend something else."""

_DRAWN = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""What a device program decides instead."""


def _arguments(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
