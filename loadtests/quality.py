"""What number formats cost in quality: `python -m loadtests.quality`. Imports nothing of the gateway.

Every form of the step reads the same texts (`loadtests/texts`), token by token as they are written, and says after each
token what it thinks comes next. That is compared with the float32 step of the same weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.models.checkpoint import Checkpoint, open_checkpoint
from engine.models.step import StepModel
from engine.text.model import TextModel
from loadtests.models import locate
from loadtests.quality_forms import BASELINE, FORMS, ON_CUDA, QUANTIZED, REFERENCE, Form
from loadtests.results import report
from loadtests.tables import Table
from loadtests.teacher import Comparison, read_window, windows

TEXTS = Path(__file__).parent / "texts"
GROUPS = {"quantized": QUANTIZED, "cuda": ON_CUDA}
"""Forms by the name that stands for all of them."""

NEAR_TIES = (0.1, 0.25, 0.5)
"""A disagreement below one of these margins, in logits, is counted as a near tie of that width."""

_LISTED_MARGINS = 20


def read_texts(model: Path) -> dict[str, list[int]]:
    """Token ids of every text, by name."""
    tokenizer = TextModel.load(model).tokenizer
    return {
        path.stem: tokenizer.encode(path.read_text(encoding="utf-8"), add_special=False)
        for path in sorted(TEXTS.glob("*.txt"))
    }


class Examination:
    """Texts cut into windows, and what the reference says about them; holds its logits, 0.2 MB a position.

    Attributes:
        choices: Of each form examined, the likeliest token at each position.
    """

    def __init__(self, texts: Mapping[str, Sequence[int]], *, window: int, chunk: int) -> None:
        self.choices: dict[str, torch.Tensor] = {}
        self._loaded: tuple[Callable[[Checkpoint], StepModel], StepModel] | None = None
        self._window = window
        self._chunk = chunk
        self._windows = [(name, part) for name, ids in texts.items() for part in windows(ids, window)]
        self._reference: list[torch.Tensor] = []

    def examine(self, checkpoint: Checkpoint, name: str, form: Form) -> dict[str, Comparison]:
        """Reads all windows with one form; the first form examined is the reference.

        Returns:
            By text.
        """
        model = self._open(checkpoint, form)
        storage = form.make_storage(model, self._window)
        found: dict[str, Comparison] = {}
        choices = []
        is_reference = not self._reference
        for index, (text, token_ids) in enumerate(self._windows):
            logits = read_window(model, storage, token_ids, self._chunk)
            choices.append(logits.argmax(-1))
            if is_reference:
                self._reference.append(logits)
            found.setdefault(text, Comparison()).add(token_ids, logits, self._reference[index])
        self.choices[name] = torch.cat(choices)
        return found

    def agreement(self, one: str, other: str) -> float:
        """Share of positions where two examined forms find the same token likeliest."""
        return (self.choices[one] == self.choices[other]).double().mean().item()

    def _open(self, checkpoint: Checkpoint, form: Form) -> StepModel:
        if self._loaded is None or self._loaded[0] is not form.open:
            self._loaded = None  # not two models at a time
            self._loaded = form.open, form.open(checkpoint)
        return self._loaded[1]


def total(parts: Mapping[str, Comparison]) -> Comparison:
    """All texts together."""
    result = Comparison()
    for part in parts.values():
        result.merge(part)
    return result


def summary(found: Comparison) -> dict[str, Any]:
    """One comparison as JSON values."""
    return {
        "positions": found.num_positions,
        "perplexity": found.perplexity,
        "mean_logit_error": found.mean_error,
        "greatest_logit_error": found.greatest_error,
        "mean_divergence_nats": found.mean_divergence,
        "greedy_agreement": found.num_agreeing / found.num_positions,
        "disagreements": len(found.margins),
        "near_ties": {str(margin): found.num_near_ties(margin) for margin in NEAR_TIES},
        "greatest_margins": sorted(found.margins, reverse=True)[:_LISTED_MARGINS],
        "greatest_loss": max(found.losses, default=0.0),
    }


def overall_table(title: str, results: Mapping[str, Comparison]) -> Table:
    """One row a form."""
    table = Table(
        title=title,
        headers=[
            "form",
            "perplexity",
            "mean logit error",
            "greedy agreement",
            "disagreements",
            *(f"of them margin < {margin}" for margin in NEAR_TIES),
            "greatest margin",
            "KL divergence, nats",
        ],
    )
    for name, found in results.items():
        table.add(
            FORMS[name].label,
            f"{found.perplexity:.3f}",
            f"{found.mean_error:.4f}",
            f"{found.num_agreeing / found.num_positions:.2%}",
            len(found.margins),
            *(found.num_near_ties(margin) for margin in NEAR_TIES),
            f"{max(found.margins, default=0.0):.3f}",
            f"{found.mean_divergence:.5f}",
        )
    return table


def baseline_table(results: Mapping[str, Comparison], agreement: Mapping[str, float]) -> Table:
    """What each form costs against the baseline.

    Args:
        results: Of all forms, the baseline's among them.
        agreement: Greedy agreement with the baseline.
    """
    table = Table(
        title=f"Against {FORMS[BASELINE].label}",
        headers=[
            "form",
            "perplexity",
            "perplexity, change",
            "greedy agreement",
            "with float32",
            "tested to be at least",
        ],
    )
    perplexity = results[BASELINE].perplexity
    for name, found in results.items():
        floor = FORMS[name].floor
        table.add(
            FORMS[name].label,
            f"{found.perplexity:.3f}",
            f"{found.perplexity / perplexity - 1:+.2%}",
            f"{agreement[name]:.2%}",
            f"{found.num_agreeing / found.num_positions:.2%}",
            "-" if floor is None else f"{floor:.0%}",
        )
    return table


def text_table(texts: Mapping[str, Sequence[int]], results: Mapping[str, Mapping[str, Comparison]]) -> Table:
    """Perplexity and agreement of each form on each text."""
    headers = [f"{name} ({len(ids)} tokens)" for name, ids in texts.items()]
    table = Table(title="By text: perplexity, greedy agreement", headers=["form", *headers])
    for form, by_text in results.items():
        cells = [
            f"{found.perplexity:.3f}, {found.num_agreeing / found.num_positions:.1%}"
            for found in (by_text[name] for name in texts)
        ]
        table.add(FORMS[form].label, *cells)
    return table


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    command = argparse.ArgumentParser(
        prog="python -m loadtests.quality", description="Measure what number formats cost in quality."
    )
    command.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    command.add_argument(
        "--forms",
        nargs="+",
        choices=[*GROUPS, *(name for name in FORMS if name != REFERENCE)],
        help="all that run here by default; quantized: those of weights, K and V in int8 and fp8; cuda: a GPU's",
    )
    command.add_argument("--tokens", type=int, help="read only so many tokens of each text")
    command.add_argument("--window", type=int, default=512, help="tokens read together, with nothing before them")
    command.add_argument("--chunk", type=int, default=128, help="tokens of one step")
    command.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of one step")
    command.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    command.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return command


def chosen_forms(names: Sequence[str] | None) -> list[str]:
    """Forms to examine, the reference first; says which do not run here.

    Raises:
        SystemExit: A form was asked for by name that does not run here.
    """
    chosen = [REFERENCE]
    names = [each for name in names or () for each in GROUPS.get(name, (name,))]
    for name in names or [each for each in FORMS if each != REFERENCE]:
        reason = FORMS[name].missing()
        if reason is None:
            chosen.append(name)
        elif names:
            raise SystemExit(f"{name} does not run here: {reason}")
        else:
            print(f"{name} is left out: {reason}", flush=True)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    command = parser()
    options = command.parse_args(argv)
    if options.window < 2 or options.chunk < 1 or options.threads < 1:
        command.error("--window must be at least 2, --chunk and --threads at least 1")
    if options.tokens is not None and options.tokens < 2:
        command.error("--tokens must be at least 2")
    torch.set_num_threads(options.threads)
    forms = chosen_forms(options.forms)
    path = locate(options.model)
    checkpoint = open_checkpoint(path)
    texts = {name: token_ids[: options.tokens] for name, token_ids in read_texts(path).items()}
    examination = Examination(texts, window=options.window, chunk=options.chunk)
    by_text: dict[str, dict[str, Comparison]] = {}
    for name in forms:
        started_s = time.perf_counter()
        by_text[name] = examination.examine(checkpoint, name, FORMS[name])
        print(f"{name}: {time.perf_counter() - started_s:.0f} s", flush=True)
    results = {name: total(parts) for name, parts in by_text.items()}
    num_positions = results[REFERENCE].num_positions
    title = f"{options.model}: {num_positions} positions, against float32"
    tables = [overall_table(title, results)]
    agreement = {}
    if BASELINE in results:
        agreement = {name: examination.agreement(name, BASELINE) for name in results}
        tables.append(baseline_table(results, agreement))
    report(
        [*tables, text_table(texts, by_text)],
        {
            "model": options.model,
            "fingerprint": checkpoint.fingerprint(),
            "window": options.window,
            "chunk": options.chunk,
            "forms": {
                name: {
                    "label": FORMS[name].label,
                    **summary(found),
                    "greedy_agreement_with_baseline": agreement.get(name),
                    "texts": {text: summary(part) for text, part in by_text[name].items()},
                }
                for name, found in results.items()
            },
        },
        json_path=options.json,
        markdown=options.markdown,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
