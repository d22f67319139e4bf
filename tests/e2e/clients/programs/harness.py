"""Runs the checks of one client library and prints what came out as JSON. Standard library only.

Run as `python -m tests.e2e.clients.programs.with_NAME JSON`, where JSON is a `Target`. The last line printed is a JSON
object: the version of the library, and for each feature `{"state": "works"}`, `{"state": "fails", "detail": …}` or
`{"state": "lacks", "detail": reason}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import io
import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

PATIENCE_S = 60.0
CHECK_TIMEOUT_S = 240.0
SHORT_S = 0.4
"""Timeout that a client is given where the server never answers."""

MODEL_MAX_TOKENS = 24
QUESTION = "What is the capital of France?"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the servers are.

    Attributes:
        url: Base URL of the scripted server, with `/v1`.
        key: The key that it accepts.
        model: Its model's name.
        num_hello_tokens: Tokens of the answer in the scenario `hello`, its end included.
        num_cached_tokens: Cached tokens that it reports.
        real_url: Base URL of the real model's server, or None.
        real_model: Its model's name.
        snippet: Source of the documented first lines, with the real server's port.
    """

    url: str
    key: str
    model: str
    num_hello_tokens: int
    num_cached_tokens: int
    real_url: str | None
    real_model: str
    snippet: str | None

    def wait_until_idle(self) -> None:
        """Returns when the scripted server has ended all work, which nobody waits for any more."""
        deadline_s = time.monotonic() + PATIENCE_S
        while busy := self._busy():
            assert time.monotonic() < deadline_s, f"still busy: {busy}"
            time.sleep(0.02)

    def count_requests(self, status: int) -> int:
        """Requests that were answered with a status so far."""
        found = [
            value
            for name, value in self._metrics()
            if name.startswith("wye_http_requests_total{") and f'status="{status}"' in name
        ]
        return int(sum(found))

    def _busy(self) -> dict[str, float]:
        names = ("wye_gateway_active_requests", "wye_engine_running_sequences")
        return {name: value for name, value in self._metrics() if name.split("{")[0] in names and value}

    def _metrics(self) -> list[tuple[str, float]]:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/metrics", timeout=PATIENCE_S) as answer:
            shown = answer.read().decode().splitlines()
        samples = [line.rsplit(" ", 1) for line in shown if not line.startswith("#")]
        return [(name, float(value)) for name, value in samples]


Check = Callable[[Target], Coroutine[Any, Any, None] | None]
Raised = TypeVar("Raised", bound=BaseException)


class Matrix:
    """The checks of one library.

    Args:
        package: Its name on PyPI.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._checks: dict[str, Check] = {"snippet": run_snippet}
        self._lacks: dict[str, str] = {}

    def check(self, feature: str) -> Callable[[Check], Check]:
        """Declares a function as the check of a feature; it raises if the feature does not work."""

        def add(check: Check) -> Check:
            assert feature not in self._checks, feature
            self._checks[feature] = check
            return check

        return add

    def lacks(self, reason: str, *features: str) -> None:
        """Declares what the library does not offer, and why."""
        self._lacks.update(dict.fromkeys(features, reason))

    def run(self) -> None:
        """Runs everything and prints the results."""
        target = Target(**json.loads(sys.argv[1]))
        cells = {feature: {"state": "lacks", "detail": reason} for feature, reason in self._lacks.items()}
        for feature, check in self._checks.items():
            if target.real_url is not None or not (feature == "snippet" or feature.startswith("real-")):
                started = time.monotonic()
                cells[feature] = _outcome(check, target)
                print(f"{feature}: {cells[feature]['state']}, {time.monotonic() - started:.2f} s", file=sys.stderr)
        version = importlib.metadata.version(self._package)
        print(json.dumps({"package": self._package, "version": version, "cells": cells}), flush=True)


def run_snippet(target: Target) -> None:
    """Runs the documented first lines, which must print something."""
    assert target.snippet is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(target.snippet, "snippet", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().strip(), "it printed nothing"


def failure(kind: type[Raised], call: Callable[[], object]) -> Raised:
    """What a call raises, which must be of a kind."""
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; the answer was {answer!r}")


def equal(found: object, wanted: object) -> None:
    """Raises unless two values are equal, showing both."""
    assert found == wanted, f"got {found!r}, not {wanted!r}"


def _outcome(check: Check, target: Target) -> dict[str, str]:
    try:
        if (work := check(target)) is not None:
            asyncio.run(_within(work))
        target.wait_until_idle()
    except BaseException:
        return {"state": "fails", "detail": traceback.format_exc(limit=-12)}
    return {"state": "works"}


async def _within(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(work, CHECK_TIMEOUT_S)
