"""What guessing ahead is worth: `python -m loadtests.speculation`.

The same prompts are answered without a drafter, with prompt lookup, and with a prediction, in turns, in one process.
The answers are compared: they must be the same. Two workloads repeat what is in their prompts (a text to be written out
again, a program with one name changed), one repeats nothing but itself (questions).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.request import DrafterSpec, EngineInfo
from engine.text.model import TextModel
from loadtests.driver import BatchTiming, EngineDriver
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.server import CHECKOUT
from loadtests.tables import Table

PER_PLACE = 4
"""Tasks for each answer that is generated at a time: where one ends sooner the next begins."""

TEXTS = CHECKOUT / "loadtests" / "texts"

QUESTIONS = (
    "Explain to a child why the sky is blue.",
    "Write a short story about a lighthouse.",
    "How do bees make honey?",
    "What is the difference between weather and climate?",
    "Write a letter to a friend about a journey.",
    "Why do we have leap years?",
    "Describe a market in the morning.",
    "How can I fall asleep more easily?",
)

FUNCTION = """def count_words_{n}(text, skip):
    counts = {{}}
    for line in text.splitlines():
        for word in line.split():
            word = word.strip(".,;:!?").lower()
            if not word or word in skip:
                continue
            if word in counts:
                counts[word] = counts[word] + 1
            else:
                counts[word] = 1
    total_{n} = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for word, count in ranked[:{n}]:
        print(word, count, count / total_{n})
    return ranked
"""


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt and the text that its answer is expected to resemble.

    Attributes:
        question: What is asked.
        prediction: That text; empty if nobody could know one.
    """

    question: str
    prediction: str


def tasks(count: int) -> dict[str, list[Task]]:
    """Workloads by name, of as many tasks; texts and programs all differ."""
    words = (TEXTS / "letters.txt").read_text(encoding="utf-8").split()
    starts = [97 * at % (len(words) - 90) for at in range(count)]
    passages = [" ".join(words[start : start + 90]) for start in starts]
    programs = [FUNCTION.format(n=at + 10) for at in range(count)]
    return {
        "copying": [Task(f"Repeat this text exactly, word for word:\n\n{one}", one) for one in passages],
        "editing": [
            Task(
                f"Write this program again, with the variable `ranked` renamed to `order`:\n\n```python\n{one}```", one
            )
            for one in programs
        ],
        "answering": [Task(QUESTIONS[at % len(QUESTIONS)], "") for at in range(count)],
    }


@dataclass(frozen=True, slots=True)
class Way:
    """How a task is answered.

    Attributes:
        name: For the table.
        max_tokens: Guessed at a time; 0 for no drafter.
        predicts: The prediction is looked up too.
    """

    name: str
    max_tokens: int = 0
    predicts: bool = False

    def drafter(self, reference_ids: Sequence[int]) -> DrafterSpec | None:
        """Of one task."""
        if not self.max_tokens:
            return None
        return DrafterSpec(max_tokens=self.max_tokens, reference_ids=list(reference_ids) if self.predicts else [])


def measure(driver: EngineDriver, text: TextModel, width: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every workload in every way, `rounds` times; the order is turned round every time.

    Raises:
        RuntimeError: A drafter changed an answer.
    """
    ways = [Way("plain"), Way("lookup", options.guess), Way("prediction", options.guess, predicts=True)]
    rows = []
    for workload, asked in tasks(width if width == 1 else PER_PLACE * width).items():
        usable = [way for way in ways if asked[0].prediction or not way.predicts]
        prompts = [_prompt(text, task.question) for task in asked]
        references = [text.tokenizer.encode(task.prediction, add_special=False) for task in asked]
        found: dict[str, list[BatchTiming]] = {way.name: [] for way in usable}
        for turn in range(options.rounds + 1):  # the first fills the prefix cache, so that decoding alone differs
            for way in usable if turn % 2 == 0 else reversed(usable):
                drafters = [way.drafter(reference) for reference in references]
                batch = driver.run(
                    prompts, options.output, drafters=drafters, temperature=options.temperature, at_once=width
                )
                if turn:
                    found[way.name].append(batch)
        rows += [_row(workload, width, way, found) for way in usable if way.max_tokens]
    return rows


def _prompt(text: TextModel, question: str) -> list[int]:
    if text.chat_template is None:
        return text.tokenizer.encode(question, add_special=True)
    return text.tokenizer.encode(text.chat_template.render([{"role": "user", "content": question}]), add_special=False)


def _row(workload: str, width: int, way: Way, found: Mapping[str, Sequence[BatchTiming]]) -> dict[str, Any]:
    plain, drafted = found["plain"], found[way.name]
    answers = [[one.token_ids for one in batch.sequences] for batch in (*plain, *drafted)]
    num_same = sum(one == answers[0] for one in answers)
    num_tokens = sum(map(len, answers[0]))
    return {
        "workload": workload,
        "way": way.name,
        "width": width,
        "plain_tokens_per_s": statistics.median(num_tokens / batch.wall_s for batch in plain),
        "tokens_per_s": statistics.median(num_tokens / batch.wall_s for batch in drafted),
        "ratio": statistics.median(one.wall_s / other.wall_s for one, other in zip(plain, drafted, strict=True)),
        "drafted_share": drafted[0].num_drafted_tokens / num_tokens,
        "accepted_share": drafted[0].num_accepted_tokens / max(drafted[0].num_drafted_tokens, 1),
        "same_answers": num_same == len(answers),
        "rounds": {"plain": [one.wall_s for one in plain], way.name: [one.wall_s for one in drafted]},
    }


def draft_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Speed with a drafter beside that without one."""
    headers = ["workload", "drafter", "width", "plain, tokens/s", "with it, tokens/s", "ratio"]
    table = Table(title=title, headers=[*headers, "guessed, % of the answer", "of those right, %", "same answers"])
    for row in rows:
        table.add(
            *(row["workload"], row["way"], row["width"], row["plain_tokens_per_s"], row["tokens_per_s"], row["ratio"]),
            *(100 * row["drafted_share"], 100 * row["accepted_share"], "yes" if row["same_answers"] else "no"),
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.speculation", description="Measure answers with a drafter beside those without one."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8], help="answers generated together")
    parser.add_argument("--output", type=int, default=160, help="tokens of each answer")
    parser.add_argument("--guess", type=int, default=16, help="most tokens guessed at a time")
    parser.add_argument("--temperature", type=float, default=0.0, help="of all draws")
    parser.add_argument("--rounds", type=int, default=5, help="medians are taken over as many rounds")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Ends with 1 if a drafter changed an answer."""
    options = _parser().parse_args(argv)
    path = locate(options.model)
    text = TextModel.load(path)
    rows: list[dict[str, Any]] = []
    with contextlib.closing(EngineDriver(engine_config(options, path))) as driver:
        info = driver.info
        for width in options.widths:
            found = measure(driver, text, width, options)
            rows += found
            ratios = ", ".join(f"{row['workload']} by {row['way']} {row['ratio']:.2f}" for row in found)
            print(f"width {width}: of the plain speed: {ratios}", flush=True)
    results = {"step": info.step, "dtype": info.dtype, "temperature": options.temperature, "drafters": rows}
    report(
        [draft_table(rows, _title(options, info))],
        results,
        json_path=options.json,
        markdown=options.markdown,
        device=info.device,
    )
    return 0 if all(row["same_answers"] for row in rows) else 1


def _title(options: argparse.Namespace, info: EngineInfo) -> str:
    draws = f", temperature {options.temperature:g}" if options.temperature else ", greedy"
    return f"{options.model}, {info.dtype}, step {info.step}{draws}: medians of {options.rounds} rounds"


if __name__ == "__main__":
    sys.exit(main())
