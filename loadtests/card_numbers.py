"""One line of what a result file says, for the table at the end of `loadtests.card`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadtests.tables import format_cell

Tell = Callable[[Mapping[str, Any]], str]
"""Makes the line of a whole document."""


def checks(document: Mapping[str, Any]) -> str:
    """Numbers of tests, and which failed."""
    parts = [f"{document[name]} {name}" for name in ("passed", "failed", "skipped")]
    if "sanitizer" in document:
        found = document["sanitizer"]["found"]
        parts.append(f"{document['sanitizer']['tool']}: {'no summary' if found is None else f'{found} found'}")
    names = [failure["test"].rpartition("/")[2] for failure in document["failures"]]
    return _list([*parts, *names[:4], *(["..."] if len(names) > 4 else [])])


def steps(document: Mapping[str, Any]) -> str:
    """Milliseconds of a step by width."""
    parts = [_step(row) for row in document["widths"]]
    parts += [f"{_step(row)} at {row['prompt_tokens']}" for row in document["contexts"]]
    return "ms a step: " + _list(parts)


def _step(row: Mapping[str, Any]) -> str:
    return f"{row['width']}: {row['step_ms']:.3f}" if row["step_ms"] else f"{row['width']}: -"


def prompts(document: Mapping[str, Any]) -> str:
    """Prompt tokens a second."""
    return "tokens/s: " + _list(
        f"{row['prompts']}x{row['prompt_tokens']}: {format_cell(row['prefill_tokens_per_s'])}"
        for row in document["prefill"]
    )


def programs(document: Mapping[str, Any]) -> str:
    """Of programs' tokens a second, the share of plain completions'."""
    kinds = [kind for kind in ("generate", "samples", "steps") if kind in document]
    return "ratios: " + "; ".join(
        f"{kind} " + _list(_ratio(kind, row) for row in document[kind]) for kind in kinds if document[kind]
    )


def _ratio(kind: str, row: Mapping[str, Any]) -> str:
    more = f" ({row['more_ms_per_step']:+.2f} ms)" if kind == "steps" else ""
    return f"{row['width']}: {row['ratio']:.2f}{more}"


def http(document: Mapping[str, Any]) -> str:
    """Tokens a second and time to first token by streams."""
    return _list(
        f"{run['concurrency']}: {format_cell(run['output_tokens_per_s'])} tokens/s, "
        f"TTFT p50 {format_cell(run['ttft_ms']['p50'])} ms, {run['num_failed']} failed"
        for run in document["runs"]
    )


def profile(document: Mapping[str, Any]) -> str:
    """Microseconds of a step, and what adds most."""
    return "; ".join(
        f"{row['width']}: {row['step_us']:.0f} us, traced {row['traced_step_us']:.0f}, nothing {row['idle_us']:.0f}, "
        + _list(f"{one['name'][:28]} {one['adds_us']:.0f}" for one in row["kernels"][:4])
        for row in document["rows"]
    )


def start(document: Mapping[str, Any]) -> str:
    """Seconds to ready."""
    cold, *warm = document["starts"]
    return f"cold {cold['ready_s']:.1f} s, warm " + _list(f"{row['ready_s']:.1f} s" for row in warm)


def memory(document: Mapping[str, Any]) -> str:
    """What came on top of pool and weights."""
    return "MiB: " + "; ".join(
        f"pool {row['pool_mib']:.0f} of {row['asked_mib'] or 'its own choice'}, {row['beside_mib']:.0f} beside it"
        for row in document["rows"]
    )


def quality(document: Mapping[str, Any]) -> str:
    """Greedy agreement with float32, and perplexity."""
    return _list(
        f"{name}: {100 * form['greedy_agreement']:.1f}% ppl {form['perplexity']:.2f}"
        for name, form in document["forms"].items()
    )


def nothing(document: Mapping[str, Any]) -> str:
    """Of a file that needs no words."""
    return ""


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)
