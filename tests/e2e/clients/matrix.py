"""Runs the matrix and writes what docs/clients.md shows: `python -m tests.e2e.clients.matrix [--only NAME]`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from docs.tables_clients import RESULTS
from loadtests.server import RunningServer, running_server
from tests.e2e.clients.clients import CLIENTS
from tests.e2e.clients.features import FEATURES
from tests.e2e.clients.installing import home
from tests.e2e.clients.running import REAL_MODEL, Outcome, run_client
from tests.fakes import text_model

NUM_AT_ONCE = 2
"""Clients that are installed or run at the same time: mostly they compute."""


@contextlib.contextmanager
def running_matrix(
    names: Iterable[str], where: Path, state: Path, real: RunningServer | None
) -> Iterator[Mapping[str, Future[Outcome]]]:
    """Starts the clients, a few at a time; the results come as futures.

    Args:
        names: Of the clients, in the order in which they are to run.
        where: Directory of all environments.
        state: Empty directory for what the scripted servers keep.
        real: Server of the real model; without it nothing is asked of it.
    """
    text = text_model()
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        yield {name: pool.submit(run_client, CLIENTS[name], where, text, state / name, real) for name in names}
        pool.shutdown(cancel_futures=True)


def table_cells(outcome: Outcome) -> dict[str, str]:
    """State of every feature as it is published: why something fails is no part of it, why it is lacking is."""
    cells = {}
    for feature in FEATURES:
        cell = outcome.cells.get(feature, {"state": "missing"})
        cells[feature] = cell["detail"] if cell["state"] == "lacks" else cell["state"]
    return cells


def table_entry(name: str, outcome: Outcome) -> dict[str, Any]:
    """What is published of one client."""
    title = CLIENTS[name].title
    return {"title": title, "package": outcome.package, "version": outcome.version, "cells": table_cells(outcome)}


def main(arguments: list[str]) -> int:
    """Runs clients, prints what fails, and writes the results of those that ran; exits with the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=CLIENTS, help="a client; all if none is named")
    parser.add_argument("--scripted", action="store_true", help="ask nothing of the real model, and write nothing")
    options = parser.parse_args(arguments)
    logging.disable()  # what goes wrong goes wrong on purpose
    names = options.only or list(CLIENTS)
    num_failures = 0
    entries: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    with contextlib.ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        real = None
        if not options.scripted:
            real = stack.enter_context(running_server(REAL_MODEL, args=["--kv-pages", "256"]))
        for name, future in stack.enter_context(running_matrix(names, home(), state, real)).items():
            outcome = future.result()
            entries[name] = table_entry(name, outcome)
            print(f"{CLIENTS[name].title}: {outcome.package} {outcome.version}")
            failing = {feature: cell for feature, cell in outcome.cells.items() if cell["state"] == "fails"}
            num_failures += len(failing)
            for feature, cell in failing.items():
                print(f"\n{feature} fails\n{cell['detail']}")
    if not options.scripted:
        ordered = {name: entries[name] for name in CLIENTS if name in entries}
        RESULTS.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return num_failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
