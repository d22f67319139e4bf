"""Checks and measures everything that a GPU decides, in one command: `python -m loadtests.card`.

python -m loadtests.card --out /tmp/card --budget 540 --parts steps,http
python -m loadtests.card --out /tmp/card --dry        all parts on this machine's CPU, tiny: whether the command works

Parts run one after the other, each command in a process of its own within its own time. Its result is in the directory
as soon as it is there, and `card.json` tells of all that have run: whatever fails, crashes or is not ready in time
costs nobody else's numbers. Files that are named as those in `loadtests/results` may be copied there; then `make docs`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.sources.errors import SourceError
from loadtests.card_parts import PARTS, Setting, cases_of
from loadtests.card_run import GRACE_S, Outcome, as_json, run_case
from loadtests.made_tokenizer import MADE
from loadtests.models import locate
from loadtests.results import environment

LEAST_S = 20.0
"""Nothing is begun with less time left."""

_SAID = 500
"""Characters of a line at the end."""


def card_name() -> str:
    """Short name of this machine's first GPU for the names of files: `h200` of an NVIDIA H200.

    Raises:
        OSError: There is none, or its driver does not answer.
    """
    command = ["nvidia-smi", "--id=0", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except subprocess.SubprocessError as error:
        raise OSError(f"nvidia-smi names no GPU: {error}") from error
    return slug(done.stdout)


def slug(name: str) -> str:
    """A GPU's name as part of a file's."""
    words = re.findall(r"[a-z0-9]+", name.strip().lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "tesla")) or "gpu"


def outcomes(parts: Sequence[str], setting: Setting, directory: Path, budget_s: float) -> Iterator[Outcome]:
    """Runs all commands of some parts, each result as soon as it is there.

    Args:
        parts: Names of `PARTS`.
        setting: Where and how.
        directory: For files and logs.
        budget_s: Seconds for all of them; a command that is begun is given up in time.
    """
    ends_s = time.monotonic() + budget_s
    for part in parts:
        cases = cases_of(part, setting)
        if not cases:
            yield Outcome(part=part, case="-", how="left out", said="no model was named for it")
        for case in cases:
            if case.unless is not None and case.unless.exists():
                continue
            left_s = ends_s - time.monotonic() - GRACE_S
            if left_s < LEAST_S:
                yield Outcome(part=part, case=case.name, how="left out", said="no time was left")
                continue
            yield run_case(part, case, directory, left_s)


def summary(found: Sequence[Outcome]) -> str:
    """What came of everything, a line each."""
    return "\n".join(
        f"{one.part + ' ' + one.case:<32} {one.how:<11} {one.seconds:>4.0f} s  {one.said[:_SAID]}".rstrip()
        for one in found
    )


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    command = argparse.ArgumentParser(
        prog="python -m loadtests.card",
        description="Check and measure everything that a GPU decides.",
        epilog="; ".join(f"{name}: {part.about}" for name, part in PARTS.items()),
    )
    command.add_argument("--out", type=Path, required=True, help="directory for results, logs and card.json")
    command.add_argument("--parts", help=f"which, with commas: {','.join(PARTS)}; default: all")
    command.add_argument("--budget", type=float, default=7200.0, help="seconds for all of it")
    command.add_argument("--dry", action="store_true", help="tiny sizes on the CPU: tries the command out")
    command.add_argument(
        "--models", type=Path, help="directory that keeps models of random weights; default: none is kept"
    )
    command.add_argument("--tokenizer", help=f"of those models: stored, a directory or file, or {MADE}")
    command.add_argument("--real-model", help="stored model, directory or GGUF file whose quality is measured")
    command.add_argument("--workers", type=int, help="gateway processes; default: a quarter of the cores")
    command.add_argument("--histories", type=int, default=100, help="random histories of the tests")
    return command


def chosen_parts(text: str | None, *, dry: bool = False) -> list[str]:
    """Parts by name, in the order given; all without a name.

    Raises:
        ValueError: There is no such part, or not for a dry run.
    """
    known = [name for name, part in PARTS.items() if part.runs_dry or not dry]
    names = known if text is None else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"there is no part {', '.join(unknown) or text!r}; there are {', '.join(known)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if anything did not end well."""
    command = parser()
    options = command.parse_args(argv)
    try:
        parts = chosen_parts(options.parts, dry=options.dry)
        card = "cpu" if options.dry else card_name()
        if options.real_model is not None:
            options.real_model = str(locate(options.real_model))
    except (ValueError, OSError, SourceError) as error:
        command.error(str(error))
    with tempfile.TemporaryDirectory(prefix="wye-card-") as temporary:
        setting = Setting(
            card=card,
            device="cpu" if options.dry else "cuda",
            models=(options.models or Path(temporary)).absolute(),
            dry=options.dry,
            tokenizer=options.tokenizer or (MADE if options.dry else _tokenizer()),
            real_model=options.real_model,
            workers=options.workers or max(1, (os.cpu_count() or 1) // 4),
            histories=options.histories,
        )
        return _run(parts, setting, options.out.absolute(), options.budget)


def _run(parts: Sequence[str], setting: Setting, directory: Path, budget_s: float) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    found: list[Outcome] = []
    where = environment()
    for outcome in outcomes(parts, setting, directory, budget_s):
        found.append(outcome)
        print(f"{outcome.part} {outcome.case}: {outcome.how}, {outcome.seconds:.0f} s. {outcome.said}", flush=True)
        for line in outcome.log:
            print(f"    {line[:300]}", flush=True)
        report = {"environment": where, "card": setting.card, "cases": [as_json(one) for one in found]}
        (directory / "card.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{summary(found)}\n\nin {directory}", flush=True)
    return 0 if all(one.how == "ok" for one in found) else 1


def _tokenizer() -> str:
    """That of a small stored model, so that answers look like answers; else a made one."""
    try:
        locate("smollm2-135m")
    except SourceError:
        return MADE
    return "smollm2-135m"


if __name__ == "__main__":
    sys.exit(main())
