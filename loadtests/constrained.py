"""What a form of the output costs: `python -m loadtests.constrained`.

Prompts are continued freely and within JSON schemas, in turns, in one process. A form may leave no choice
about some tokens: those are not drawn, and come out faster than any model could say them. So the rate is given twice:
of all tokens that a client receives, and of the drawn ones alone. Of lists of strings and of arbitrary values next to
nothing is forced; of records the names of the properties are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.request import ConstraintKind, ConstraintSpec, EngineInfo
from engine.text.tokenizer import Tokenizer
from loadtests.driver import EngineDriver, PromptSource
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.tables import Table
from loadtests.targets import CONSTRAINED_WIDTH, MIN_CONSTRAINED_RATIO, MOST_COMPILE_MS, verdict

INSTRUCTION = "\n\nA list of people as JSON, each with a name, an age and a city:\n"

NUM_SKIPPED = 8
"""First tokens of a sequence that do not count: some forms force them, and then they come before the prompt is read."""

_RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
_VALUES: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "strings": ({"type": "string"}, False),
    "any values": ({}, False),
    "records": (_RECORD, False),
    "records without white space": (_RECORD, True),
}


def forms() -> dict[str, ConstraintSpec]:
    """Lists that are longer than any answer here, by what they hold."""
    return {
        name: ConstraintSpec(
            kind=ConstraintKind.JSON_SCHEMA,
            source=json.dumps({"type": "array", "items": items, "minItems": 100_000}),
            compact=compact,
        )
        for name, (items, compact) in _VALUES.items()
    }


def wide_schema(num_properties: int, number: int) -> ConstraintSpec:
    """A schema of properties of many types; no two numbers give the same."""
    types = (
        {"type": "string"},
        {"type": "integer", "minimum": 0},
        {"type": "number"},
        {"type": ["boolean", "null"]},
        {"enum": ["low", "medium", "high"]},
        {"type": "array", "items": {"type": "string"}},
    )
    properties = {f"field_{number}_{at}": types[at % len(types)] for at in range(num_properties)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ConstraintSpec(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema), strict=True)


class AskingPrompts(PromptSource):
    """Prompts that no cache can know and that end with the same words.

    Args:
        tokenizer: Of the model.
        vocab_size: Of the model.
        seed: Draws what comes before those words.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, seed: int = 0) -> None:
        super().__init__(vocab_size, seed)
        self._asked = list(tokenizer.encode(INSTRUCTION, add_special=False))

    def draw(self, width: int, num_tokens: int) -> list[list[int]]:
        """`width` prompts of `num_tokens` ids, or of some more if those words are longer."""
        return [ids + self._asked for ids in super().draw(width, max(1, num_tokens - len(self._asked)))]


def measure_width(
    driver: EngineDriver, prompts: PromptSource, width: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every form beside free text, `rounds` times; the order is turned round every time.

    Raises:
        ValueError: The answers are too short for a rate to exist.
    """
    specs: dict[str, ConstraintSpec | None] = {"free": None, **forms()}
    rates: dict[str, list[float]] = {name: [] for name in specs}
    drawn: dict[str, list[float]] = {name: [] for name in specs}
    for turn in range(options.rounds):
        for name in specs if turn % 2 == 0 else reversed(specs):
            ids = prompts.draw(width, options.prompt)
            batch = driver.run(ids, options.output, constraint=specs[name], temperature=options.temperature)
            rate = batch.after(NUM_SKIPPED).decode_tokens_per_s
            if rate is None:
                raise ValueError(f"{options.output} tokens are too few to measure decoding")
            rates[name].append(rate)
            drawn[name].append(batch.drawn_share)
    return [_row(name, width, rates["free"], rates[name], drawn[name]) for name in forms()]


def _row(name: str, width: int, free: Sequence[float], held: Sequence[float], drawn: Sequence[float]) -> dict[str, Any]:
    return {
        "form": name,
        "width": width,
        "free_tokens_per_s": statistics.median(free),
        "tokens_per_s": statistics.median(held),
        "ratio": statistics.median(ours / other for ours, other in zip(held, free, strict=True)),
        "forced_share": 1 - statistics.median(drawn),
        "drawn_ratio": statistics.median(
            ours * share / other for ours, share, other in zip(held, drawn, free, strict=True)
        ),
        "rounds": {"free": list(free), "held": list(held)},
    }


def measure_compile(driver: EngineDriver, num_properties: int, rounds: int) -> dict[str, Any]:
    """How long a schema takes the first time and the second; a new one in every round."""
    first, second = [], []
    for number in range(rounds):
        spec = wide_schema(num_properties, number)
        first.append(driver.compile_s(spec) * 1000)
        second.append(driver.compile_s(spec) * 1000)
    return {
        "properties": num_properties,
        "first_ms": statistics.median(first),
        "again_ms": statistics.median(second),
        "rounds_ms": first,
    }


def form_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Speed within forms beside free text."""
    headers = ["width", "a list of", "free, tokens/s", "held, tokens/s", "ratio", "forced, %", "ratio, drawn alone"]
    table = Table(title=title, headers=[*headers, "asked", "reached"])
    for row in rows:
        is_asked = row["width"] == CONSTRAINED_WIDTH
        table.add(
            *(row["width"], row["form"], row["free_tokens_per_s"], row["tokens_per_s"], row["ratio"]),
            *(100 * row["forced_share"], row["drawn_ratio"]),
            MIN_CONSTRAINED_RATIO if is_asked else None,
            verdict(row["ratio"] >= MIN_CONSTRAINED_RATIO) if is_asked else None,
        )
    return table


def compile_table(row: Mapping[str, Any]) -> Table:
    """What a schema costs before anything is computed."""
    table = Table(
        title="From a request with a schema to the moment at which it can be computed",
        headers=["properties", "the first time, ms", "again, ms", "asked", "reached"],
    )
    reached = verdict(row["first_ms"] <= MOST_COMPILE_MS)
    table.add(row["properties"], row["first_ms"], row["again_ms"], f"at most {MOST_COMPILE_MS:g} ms once", reached)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.constrained", description="Measure decoding within a form beside free text."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 32], help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=72, help="tokens to generate for each sequence")
    parser.add_argument("--temperature", type=float, default=0.7, help="of all draws")
    parser.add_argument("--properties", type=int, default=200, help="of the schema that is compiled")
    parser.add_argument("--rounds", type=int, default=7, help="medians are taken over as many rounds")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = _parser().parse_args(argv)
    path = locate(options.model)
    with contextlib.closing(EngineDriver(engine_config(options, path))) as driver:
        info = driver.info
        prompts = AskingPrompts(Tokenizer.load(path), info.vocab_size, options.seed)
        driver.warm_up()
        for spec in (None, *forms().values()):
            driver.run(prompts.draw(2, 64), 8, constraint=spec)
        rows = []
        for width in options.widths:
            found = measure_width(driver, prompts, width, options)
            rows += found
            ratios = ", ".join(f"{row['form']} {row['ratio']:.2f}" for row in found)
            print(f"width {width}: of the speed of free text: {ratios}", flush=True)
        compiled = measure_compile(driver, options.properties, options.rounds)
    tables = [form_table(rows, _title(options, info)), compile_table(compiled)]
    results = {"step": info.step, "dtype": info.dtype, "temperature": options.temperature, "forms": rows}
    report(
        tables,
        {**results, "compile": compiled},
        json_path=options.json,
        markdown=options.markdown,
        device=info.device,
    )
    return 0


def _title(options: argparse.Namespace, info: EngineInfo) -> str:
    return (
        f"{options.model}, {info.dtype}, step {info.step}: decoding within a form, medians of {options.rounds} rounds"
    )


if __name__ == "__main__":
    sys.exit(main())
