"""What `loadtests.peers` draws from its rates: ours beside each peer, and ours beside the speed of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.bandwidth import MemoryProbe, bytes_per_step, floor_rate
from loadtests.contest import Rates, Shape
from loadtests.peers_field import Field, pairings
from loadtests.tables import Table
from loadtests.targets import ask_for, verdict


def comparison_rows(rates: Mapping[Shape, Rates], field: Field) -> list[dict[str, Any]]:
    """One row for each pair of contestants on each shape."""
    rows = []
    for shape, of_shape in rates.items():
        for pair in pairings(shape, list(field.drivers), openvino=field.openvino is not None):
            ask = ask_for(shape, pair.weights, pair.kind) if pair.peer.startswith("llama.cpp") else None
            rows.append(
                {
                    "case": shape.label,
                    "ours": pair.ours,
                    "peer": pair.peer,
                    "ours_tokens_per_s": of_shape.median(pair.ours),
                    "peer_tokens_per_s": of_shape.median(pair.peer),
                    "ratio": of_shape.ratio(pair.ours, pair.peer),
                    "asked_ratio": ask.ratio if ask else None,
                    "aim_tokens_per_s": ask.aim if ask else None,
                }
            )
    return rows


def limit_rows(
    rates: Mapping[Shape, Rates], field: Field, probes: Mapping[str, MemoryProbe], num_weights: int
) -> list[dict[str, Any]]:
    """How near each decode comes to reading its bytes at the speed of memory."""
    rows = []
    for shape, of_shape in rates.items():
        for weights, driver in field.drivers.items() if shape.phase == "decode" else ():
            measured = of_shape.median(f"Wye {weights}")
            assert measured is not None
            num_bytes = bytes_per_step(driver.info, num_weights, shape)
            speed = probes[weights].gigabytes_per_s
            floor = floor_rate(shape, num_bytes, speed)
            rows.append(
                {
                    "case": shape.label,
                    "ours": f"Wye {weights}",
                    "bytes_per_step": num_bytes,
                    "memory_gb_per_s": speed,
                    "floor_ms": 1000 * shape.width / floor,
                    "step_ms": 1000 * shape.width / measured,
                    "share_of_floor": measured / floor,
                }
            )
    return rows


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str, openvino: str | None) -> Table:
    """Ours beside the peers."""
    table = Table(
        title=title,
        headers=["case", "ours", "tokens/s", "peer", "tokens/s", "ratio", "asked", "reached", "aim, tokens/s"],
    )
    for row in rows:
        ratio, asked = row["ratio"], row["asked_ratio"]
        ours, theirs = row["ours_tokens_per_s"], row["peer_tokens_per_s"]
        reached = verdict(None if ratio is None or asked is None else ratio >= asked)
        table.add(row["case"], row["ours"], ours, row["peer"], theirs, ratio, asked, reached, row["aim_tokens_per_s"])
    if openvino is None:
        table.add("all", None, None, "OpenVINO GenAI (not installed: left out)", None, None, None, None, None)
    return table


def limit_table(rows: Sequence[Mapping[str, Any]], threads: int) -> Table:
    """Ours beside memory."""
    table = Table(
        title=f"The physical limit: bytes of a decode step, read by {threads} threads as fast as memory gives them",
        headers=["case", "ours", "MB a step", "memory, GB/s", "floor, ms", "step, ms", "of the limit, %"],
    )
    for row in rows:
        share = 100 * row["share_of_floor"]
        megabytes = row["bytes_per_step"] / 1e6
        table.add(row["case"], row["ours"], megabytes, row["memory_gb_per_s"], row["floor_ms"], row["step_ms"], share)
    return table
