"""From runs of agents to the numbers and tables that `loadtests.agents` shows."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.tables import Table

FACTORS = ("keep", "early", "drop")
Combination = tuple[bool, bool, bool]
COMBINATIONS: tuple[Combination, ...] = tuple(itertools.product((False, True), (False, True), (False, True)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What all runs of one way came to in one round.

    Attributes:
        spans_s: Seconds that each run took.
        whole_s: Seconds until the last had ended.
        kv_mib_s: MiB times seconds of KV that a run was charged for on average; None where the server does not say.
        texts: What each run generated.
        prefill_tokens: What the engine computed for a run on average beside the tokens that it drew.
    """

    spans_s: Sequence[float]
    whole_s: float
    kv_mib_s: float | None
    texts: Sequence[Sequence[int]]
    prefill_tokens: float = 0.0

    @property
    def runs_per_s(self) -> float:
        """Completed runs per second."""
        return len(self.spans_s) / self.whole_s


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def same_share(texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """How many of the tokens are those of others at their places."""
    pairs = [(a, b) for one, other in zip(texts, others, strict=True) for a, b in zip(one, other, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def summary(rounds: Sequence[Measured], base: Sequence[Measured]) -> dict[str, Any]:
    """Medians over rounds, beside those of what they are compared with."""
    costs = [one.kv_mib_s for one in rounds if one.kv_mib_s is not None]
    return {
        "p50_s": statistics.median(quantile(one.spans_s, 0.5) for one in rounds),
        "p95_s": statistics.median(quantile(one.spans_s, 0.95) for one in rounds),
        "runs_per_s": statistics.median(one.runs_per_s for one in rounds),
        "tokens_per_s": statistics.median(sum(map(len, one.texts)) / one.whole_s for one in rounds),
        "prefill_tokens": statistics.median(one.prefill_tokens for one in rounds),
        "kv_mib_s": statistics.median(costs) if len(costs) == len(rounds) else None,
        "ratio": statistics.median(one.runs_per_s / other.runs_per_s for one, other in zip(rounds, base, strict=True)),
        "same": statistics.fmean(same_share(one.texts, other.texts) for one, other in zip(rounds, base, strict=True)),
        "rounds_runs_per_s": [one.runs_per_s for one in rounds],
    }


def effects(logs: Mapping[Combination, float]) -> dict[str, float]:
    """Main effects and interactions of the factors on a logarithm: by how much each multiplies, others averaged.

    An interaction is what two or three do together beyond what each does alone.
    """
    found = {}
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(3), size):
            signed = [
                value * math.prod(1 if combination[at] else -1 for at in chosen) for combination, value in logs.items()
            ]
            name = " x ".join(FACTORS[at] for at in chosen)
            found[name] = math.exp(sum(signed) / (len(signed) / 2))
    return found


def combination_name(combination: Sequence[bool]) -> str:
    """Which of the factors it has."""
    return " + ".join(name for name, has in zip(FACTORS, combination, strict=True) if has) or "none of them"


_COLUMNS = ("p50 s", "p95 s", "runs/s", "prefill tokens a run", "KV MiB·s a run")


def _cells(row: Mapping[str, Any]) -> list[Any]:
    return [row["p50_s"], row["p95_s"], row["runs_per_s"], row["prefill_tokens"], row["kv_mib_s"]]


def arms_table(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Table:
    """Workflows in the three ways; `options` are those of the command."""
    title = (
        f"Agents, {options['instances']} at once, {options['calls']} calls a run ({options['swarm_calls']} in Swarm), "
        f"{options['tokens']} tokens between calls, "
        f"tool {options['tool_delay_ms']:g} ms, remote {options['rtt_ms']:g} ms away"
    )
    table = Table(title=title, headers=["workflow", "as", *_COLUMNS, "of local", "same tokens"])
    for row in rows:
        table.add(row["workflow"], row["way"], *_cells(row), row["ratio"], row["same"])
    return table


def factorial_tables(rows: Sequence[Mapping[str, Any]], found: Mapping[str, float], num_calls: int) -> list[Table]:
    """All combinations, and what each factor does, in runs of so many calls."""
    table = Table(
        title=f"ReACT as a program of {num_calls} calls, tailored",
        headers=["with", *_COLUMNS, "of none", "same tokens"],
    )
    for row in rows:
        table.add(combination_name([row[name] for name in FACTORS]), *_cells(row), row["ratio"], row["same"])
    multiplied = Table(title="What each does to runs per second", headers=["factor", "times"])
    for name, value in found.items():
        multiplied.add(name, value)
    return [table, multiplied]
